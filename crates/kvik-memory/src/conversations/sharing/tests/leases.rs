//! One node at a time changes a conversation or claims a name, until its lease ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::*;
use crate::conversations::ConversationKey;

#[test]
fn a_conversation_is_changed_by_one_node_at_a_time() {
    let (_, one, two) = nodes();
    let id = one.say("trip", "1").unwrap();
    let mut held = one.store.hold("a", "trip").unwrap();
    for reference in ["trip", &id] {
        assert!(matches!(refusal(two.store.hold("a", reference)), ConversationError::Busy(_)));
    }
    assert!(matches!(refusal(two.store.hold_or_begin("a", "trip")), ConversationError::Busy(_)));
    assert_eq!(two.texts("trip").unwrap(), ["1"], "it can be read");
    held.append(&[said("user", "2")]).unwrap();
    drop(held);
    assert_eq!(two.store.hold("a", "trip").unwrap().messages().unwrap().len(), 2);
    two.settle();
    assert_eq!(one.say("trip", "3").unwrap(), id, "what was held and not changed is free");
}

#[test]
fn a_request_waits_for_a_comparison_whenever_it_begins() {
    let (_, one, _) = nodes();
    let id = one.say("trip", "1").unwrap();
    let key = ConversationKey { tenant: "a".to_owned(), id };
    let shelf = &one.store.shelf;
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::SeqCst) {
                drop(shelf.compare(&key));
            }
        });
        let busy = (0..50_000).filter(|_| {
            let taken = shelf.take(&key, None, "trip");
            shelf.heads().release(&key);
            taken.is_err()
        });
        let busy = busy.count();
        ended.store(true, Ordering::SeqCst);
        assert_eq!(busy, 0);
    });
}

#[test]
fn a_lease_is_renewed_and_ends_with_its_node() {
    let memory = Arc::default();
    // Longer than a thread of a test is ever delayed.
    let lease = Duration::from_secs(2);
    let (one, two) = (Node::leasing(&memory, lease), Node::leasing(&memory, lease));
    one.say("trip", "1").unwrap();
    let mut held = one.store.hold("a", "trip").unwrap();
    let begun = one.store.begin("a", Some("new")).unwrap();
    let until = Instant::now() + lease + lease / 4;
    while Instant::now() < until {
        one.store.shelf.sharing_in_background().unwrap().renew();
        assert!(matches!(refusal(two.store.hold("a", "trip")), ConversationError::Busy(_)));
        assert!(matches!(refusal(two.store.begin("a", Some("new"))), ConversationError::NameTaken(_)));
    }
    std::thread::sleep(lease + lease / 4);
    two.say("trip", "2").unwrap();
    two.say("new", "mine").unwrap();
    let error = refusal(held.append(&[said("user", "too late")]));
    let ConversationError::Forked { fork, .. } = error else { panic!("{error}") };
    assert_eq!(one.texts("trip").unwrap(), ["1", "2"]);
    drop((held, begun));
    one.settle();
    for node in [&one, &two] {
        assert_eq!(node.texts(&fork).unwrap(), ["1", "too late"]);
        let head = node.store.find("a", &fork).unwrap().1;
        assert!(head.name.unwrap().starts_with("trip (conflict "));
    }
    assert_eq!(one.texts("new").unwrap(), ["mine"], "a claim that has lapsed is released for nobody else");
}

/// Sets the ends of all leases and claims, as a node whose clock is ahead writes them.
fn set_ends(memory: &Memory, until: u64) {
    for ((kind, _), record) in &mut *memory.0.lock().unwrap() {
        let mut value: Value = serde_json::from_slice(&record.bytes).unwrap_or_default();
        match kind.as_str() {
            CONVERSATION if value["lease"].is_object() => value["lease"]["until"] = json!(until),
            NAME => value["until"] = json!(until),
            _ => continue,
        }
        record.bytes = serde_json::to_vec(&value).unwrap();
    }
}

#[test]
fn a_lease_of_a_node_that_has_ended_lapses_however_far_its_clock_was_ahead() {
    let memory = Arc::default();
    let lease = Duration::from_millis(300);
    let (one, two) = (Node::leasing(&memory, lease), Node::leasing(&memory, lease));
    let id = one.say("trip", "1").unwrap();
    let held = one.store.hold("a", "trip").unwrap();
    let begun = one.store.begin("a", Some("new")).unwrap();
    set_ends(&memory, u64::MAX);
    assert!(matches!(refusal(two.store.hold("a", &id)), ConversationError::Busy(_)));
    assert!(matches!(refusal(two.store.begin("a", Some("new"))), ConversationError::NameTaken(_)));
    // It renews nothing any more.
    std::thread::sleep(lease + lease / 4);
    assert_eq!(two.say(&id, "2").unwrap(), id);
    two.say("new", "mine").unwrap();
    assert_eq!(two.texts("new").unwrap(), ["mine"]);
    drop((held, begun));
}

#[test]
fn two_conversations_never_have_one_name() {
    let (_, one, two) = nodes();
    let mut begun = one.store.begin("a", Some("x")).unwrap();
    assert!(matches!(refusal(two.store.begin("a", Some("x"))), ConversationError::NameTaken(_)));
    assert!(matches!(refusal(two.store.hold_or_begin("a", "x")), ConversationError::Busy(_)));
    begun.append(&[]).unwrap();
    two.say("y", "1").unwrap();
    let mut held = two.store.hold("a", "y").unwrap();
    assert!(matches!(refusal(held.rename("x")), ConversationError::NameTaken(_)));
    drop(held);
    two.store.hold("a", "y").unwrap().rename("w").unwrap();
    one.texts("w").unwrap();
    two.store.hold("a", "w").unwrap().rename("v").unwrap();
    one.store.begin("a", Some("w")).unwrap().append(&[]).unwrap();
    drop(two.store.begin("a", Some("z")).unwrap());
    two.settle();
    one.store.begin("a", Some("z")).unwrap().append(&[]).unwrap();
    two.store.begin("b", Some("x")).unwrap().append(&[]).unwrap();
}
