//! A store that is away, loses what it has or answers late; and what nodes say without each other.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::*;
use crate::shared::SharedRecord;

#[test]
fn a_node_goes_on_alone_and_shares_later() {
    let (_, one, mut two) = nodes();
    one.say("trip", "1").unwrap();
    one.link.set_down(true);
    two.link.set_down(true);
    one.say("trip", "2").unwrap();
    assert!(matches!(refusal(two.texts("trip")), ConversationError::Elsewhere(_)), "two has never seen it");
    assert!(matches!(refusal(two.say("trip", "?")), ConversationError::Elsewhere(_)));
    let id = two.store.begin("a", None).unwrap().key().id.clone();
    assert!(matches!(refusal(two.texts(&id)), ConversationError::Elsewhere(_)), "nothing was written in it");
    two.store.begin("a", Some("new")).unwrap().append(&[said("user", "3")]).unwrap();
    two.restart();
    assert_eq!(two.texts("new").unwrap(), ["3"]);
    [&one, &two].iter().for_each(|node| node.link.set_down(false));
    [&one, &two].iter().for_each(|node| node.settle());
    assert_eq!(two.texts("trip").unwrap(), ["1", "2"]);
    assert_eq!(one.texts("new").unwrap(), ["3"]);
    assert_eq!(one.listed("a").len(), 2);
}

#[test]
fn what_two_nodes_said_without_each_other_is_kept_twice() {
    let (_, one, two) = nodes();
    let id = one.say("trip", "1").unwrap();
    assert_eq!(two.texts("trip").unwrap(), ["1"]);
    one.link.set_down(true);
    one.say("trip", "here").unwrap();
    one.store.begin("a", Some("new")).unwrap().append(&[said("user", "here")]).unwrap();
    two.say("trip", "there").unwrap();
    two.store.begin("a", Some("new")).unwrap().append(&[said("user", "there")]).unwrap();
    one.link.set_down(false);
    one.settle();
    for node in [&one, &two] {
        assert_eq!(node.texts(&id).unwrap(), ["1", "there"]);
        assert_eq!(node.texts("trip").unwrap(), ["1", "there"]);
        assert_eq!(node.texts("new").unwrap(), ["there"]);
        let names = node.listed("a");
        assert_eq!(names.len(), 4, "{names:?}");
        let conflicts: Vec<&String> =
            names.iter().flatten().filter(|name| name.contains("(conflict")).collect();
        let mut kept: Vec<_> = conflicts.iter().map(|name| node.texts(name).unwrap()).collect();
        kept.sort();
        assert_eq!(kept, [vec!["1", "here"], vec!["here"]]);
    }
}

#[test]
fn an_answer_of_the_store_that_is_lost_makes_no_conflict() {
    let memory = Arc::default();
    // When this node restarts, the lease whose answer was lost belongs to a process that has ended.
    let (mut one, two) = (Node::leasing(&memory, Duration::from_millis(50)), Node::new(&memory));
    let id = one.say("trip", "1").unwrap();
    one.link.loses_answers.store(true, Ordering::SeqCst);
    one.say("trip", "2").unwrap();
    one.say("trip", "3").unwrap();
    one.restart();
    one.link.loses_answers.store(false, Ordering::SeqCst);
    one.settle();
    assert_eq!(two.texts(&id).unwrap(), ["1", "2", "3"]);
    assert_eq!((one.listed("a").len(), two.listed("a").len()), (1, 1));
}

#[test]
fn a_store_that_has_lost_everything_gets_it_again() {
    let (memory, one, two) = nodes();
    let id = one.say("trip", "1").unwrap();
    one.settle();
    memory.0.lock().unwrap().clear();
    assert!(matches!(refusal(two.texts(&id)), ConversationError::NotFound(_)));
    assert_eq!(one.texts("trip").unwrap(), ["1"]);
    one.settle();
    assert_eq!(two.texts("trip").unwrap(), ["1"]);
    assert_eq!(two.listed("a").len(), 1);
}

#[test]
fn nobody_waits_long_for_a_store_that_stands_still() {
    let (memory, _, two) = nodes();
    let link = Link::to(&memory);
    let store = Conversations::open_shared(None, Some(link.clone()));
    let one = Node { records: Records::in_memory(), link, store };
    one.say("trip", "1").unwrap();
    let delay = Duration::from_secs(8);
    one.link.delay_ms.store(delay.as_millis() as u64, Ordering::SeqCst);
    let begun = Instant::now();
    for text in ["2", "3", "4"] {
        one.say("trip", text).unwrap();
    }
    assert!(begun.elapsed() < delay, "{:?}: no call was waited for to its end", begun.elapsed());
    one.link.delay_ms.store(0, Ordering::SeqCst);
    one.settle();
    assert_eq!(two.texts("trip").unwrap(), ["1", "2", "3", "4"]);
}

/// Covers a store that is not asked for a second after a failure: the last attempt fell into it and failed unasked.
#[test]
fn a_node_that_ends_tries_all_that_is_left_once_more() {
    let (memory, one, two) = nodes();
    for (name, text) in [("trip", "stays"), ("trip", "a secret"), ("held", "1")] {
        one.say(name, text).unwrap();
    }
    one.settle();
    let held = one.store.hold("a", "held").unwrap();
    one.link.rests.store(true, Ordering::SeqCst);
    one.link.set_down(true);
    one.store.hold("a", "trip").unwrap().take_back(1).unwrap();
    one.store.shelf.fleet.as_ref().unwrap().queue.until_failed();
    one.link.set_down(false);
    assert!(matches!(refusal(two.store.hold("a", "held")), ConversationError::Busy(_)));
    one.store.close();
    let is_secret = |record: &SharedRecord| String::from_utf8_lossy(&record.bytes).contains("a secret");
    assert!(!memory.0.lock().unwrap().values().any(is_secret), "what the last write replaces is swept");
    assert_eq!(two.texts("trip").unwrap(), ["stays"]);
    assert!(two.store.hold("a", "held").is_ok(), "an answer that was cut off keeps nobody waiting");
    drop(held);
}
