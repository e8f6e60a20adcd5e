//! What is deleted or taken back is gone at every node and in the store, and each node hears of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::*;
use crate::conversations::ConversationKey;
use crate::conversations::fleet::record::{NameClaim, changed_name, conversation_name, name_name, said_name};
use crate::conversations::twin::new_messages;
use crate::deletions::Deletion;
use crate::shared::SharedRecord;

#[test]
fn what_is_deleted_does_not_come_back() {
    let (memory, one, mut two) = nodes();
    let id = one.say("old", "1").unwrap();
    one.say("changed", "1").unwrap();
    for name in ["old", "changed"] {
        assert_eq!(two.texts(name).unwrap(), ["1"]);
    }
    two.link.set_down(true);
    two.say("changed", "2").unwrap();
    one.store.hold("a", "old").unwrap().delete().unwrap();
    one.store.hold("a", "changed").unwrap().delete().unwrap();
    two.restart();
    assert_eq!(two.texts("old").unwrap(), ["1"], "it does not know yet");
    two.link.set_down(false);
    two.settle();
    assert!(matches!(refusal(two.texts("old")), ConversationError::NotFound(_)));
    assert!(matches!(refusal(two.texts(&id)), ConversationError::NotFound(_)));
    assert!(matches!(refusal(one.texts("changed")), ConversationError::NotFound(_)));
    let [Some(name)] = &one.listed("a")[..] else { panic!("what was said meanwhile is kept") };
    assert_eq!(one.texts(name).unwrap(), ["1", "2"]);
    // The other way round: a deletion whose node did not know of new messages does not remove them.
    one.say("trip", "1").unwrap();
    two.texts("trip").unwrap();
    two.link.set_down(true);
    two.store.hold("a", "trip").unwrap().delete().unwrap();
    assert!(matches!(refusal(two.store.hold("a", "trip")), ConversationError::Elsewhere(_)));
    assert_eq!(two.listed("a").len(), 1, "what was deleted is not listed");
    one.say("trip", "2").unwrap();
    two.link.set_down(false);
    two.settle();
    assert_eq!(two.texts("trip").unwrap(), ["1", "2"]);
    drop(memory);
}

#[test]
fn a_head_that_cannot_be_read_deletes_nothing() {
    let (_, mut one, two) = nodes();
    let id = one.say("trip", "1").unwrap();
    let key = ConversationKey { tenant: "a".to_owned(), id: id.clone() };
    let foreign = one.records.table::<String>("conversations");
    foreign.change([key.head().as_str()], |_, _| Some("of a later version".to_owned())).unwrap();
    drop(foreign);
    one.restart();
    one.settle();
    assert_eq!(two.texts(&id).unwrap(), ["1"]);
    assert_eq!(one.texts(&id).unwrap(), ["1"]);
    assert_eq!(one.say("trip", "2").unwrap(), id);
    assert_eq!(two.texts("trip").unwrap(), ["1", "2"]);
}

#[test]
fn a_deletion_is_made_up_for() {
    let (_, one, mut two) = nodes();
    let id = one.say("trip", "1").unwrap();
    two.texts("trip").unwrap();
    two.link.set_down(true);
    two.store.hold("a", "trip").unwrap().delete().unwrap();
    two.restart();
    two.link.set_down(false);
    two.settle();
    for reference in ["trip", &id] {
        assert!(matches!(refusal(one.texts(reference)), ConversationError::NotFound(_)));
    }
}

/// Adds messages that no head names, as a node leaves them when it is killed between the two writes.
fn leave_orphans(memory: &Memory, key: &ConversationKey) {
    let mut records = memory.0.lock().unwrap();
    for generation in 0..3 {
        let name = said_name(key, generation, 0);
        let record = SharedRecord { version: 1, bytes: b"[\"a secret\"]".to_vec() };
        records.insert((SAID.to_owned(), name), record);
    }
}

#[test]
fn nothing_is_left_in_the_store_of_a_conversation_that_was_deleted() {
    let memory: Arc<Memory> = Arc::default();
    let (records, link) = (Records::in_memory(), Link::to(&memory));
    let open = || {
        let deletions = Deletions::open(Some(&records));
        let store = Conversations::open_deleting(Some(&records), Some(link.clone()), deletions.clone());
        (store, deletions)
    };
    let (store, deletions) = open();
    let say = |store: &Arc<Conversations>, name: &str| {
        let mut held = store.hold_or_begin("a", name).unwrap();
        held.append(&[said("user", "a secret")]).unwrap();
        held.key().clone()
    };
    let (gone, stays) = (say(&store, "gone"), say(&store, "stays"));
    leave_orphans(&memory, &gone);
    let of_others = |kind: &str| count(&memory, kind);
    // The deletion does not reach the store before the process ends.
    link.set_down(true);
    store.hold("a", "gone").unwrap().delete().unwrap();
    let owner = gone.owner();
    let left = deletions.get(&owner).unwrap();
    assert!(left.is_removed && store.erase(&owner, &left).is_err(), "it is not done while the store is away");
    drop((store, deletions));
    let (store, deletions) = open();
    assert!(matches!(refusal(store.read("a", &gone.id)), ConversationError::NotFound(_)));
    link.set_down(false);
    let deadline = Instant::now() + Duration::from_secs(20);
    let left = deletions.get(&owner).unwrap();
    while store.erase(&owner, &left).is_err() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    let all = memory.0.lock().unwrap();
    for ((kind, name), record) in all.iter().filter(|((_, name), _)| name.contains(&gone.id)) {
        assert!(kind == CONVERSATION || kind == CHANGED, "{kind} {name}");
        let text = String::from_utf8_lossy(&record.bytes);
        assert!(!text.contains("secret") && !text.contains("gone"), "{text}");
    }
    let names = all.iter().filter(|((kind, _), _)| kind == NAME);
    let named = names.filter(|(_, record)| String::from_utf8_lossy(&record.bytes).contains("gone")).count();
    assert_eq!(named, 0, "nor its name");
    drop(all);
    assert_eq!((of_others(SAID), store.read("a", "stays").unwrap().0), (1, stays), "others stay");
    assert!(store.erase(&owner, &left).is_ok(), "it may be repeated");
}

#[test]
fn a_node_that_hears_of_a_deletion_deletes_what_it_has_made_of_it() {
    let memory: Arc<Memory> = Arc::default();
    let ((one, _), (two, deletions)) = (Node::deleting(&memory), Node::deleting(&memory));
    let key = ConversationKey { tenant: "a".to_owned(), id: one.say("trip", "1").unwrap() };
    assert_eq!(two.texts("trip").unwrap(), ["1"]);
    one.store.hold("a", "trip").unwrap().delete().unwrap();
    assert!(two.texts(&key.id).is_err());
    let left = deletions.get(&key.owner()).expect("it has made something of it, maybe");
    assert_eq!((left.chain().len(), left.is_removed), (1, true));
    assert!(two.store.erase(&key.owner(), &left).is_ok());
}

/// A node that nobody asks about the conversation, as one that is to leave.
#[test]
fn a_node_hears_of_a_deletion_without_being_asked() {
    let memory: Arc<Memory> = Arc::default();
    let ((one, of_one), (two, of_two)) = (Node::deleting(&memory), Node::deleting(&memory));
    let key = ConversationKey { tenant: "a".to_owned(), id: one.say("trip", "1").unwrap() };
    one.say("stays", "2").unwrap();
    assert_eq!(two.texts("trip").unwrap(), ["1"]);
    two.store.hold("a", "trip").unwrap().delete().unwrap();
    two.settle();
    assert_eq!(of_one.all(), []);
    one.store.hear_deletions();
    let left = of_one.get(&key.owner()).expect("its prompts are still in memory");
    assert_eq!((left.chain().len(), left.is_removed, of_one.all().len()), (1, true, 1));
    assert_eq!(one.texts("stays").unwrap(), ["2"]);
    two.store.hear_deletions();
    assert_eq!(of_two.all().len(), 1, "its own");
}

#[test]
fn a_node_that_hears_of_messages_taken_back_deletes_what_it_has_made_of_them() {
    let memory: Arc<Memory> = Arc::default();
    let ((one, of_one), (two, of_two)) = (Node::deleting(&memory), Node::deleting(&memory));
    one.store.hold_or_begin("a", "trip").unwrap().append(&new_messages(0, 1, 4)).unwrap();
    assert_eq!(two.texts("trip").unwrap().len(), 5);
    one.store.hold("a", "trip").unwrap().append(&new_messages(1, 2, 1)).unwrap();
    assert_eq!(two.texts("trip").unwrap().len(), 7);
    assert_eq!(of_two.all(), [], "system messages that are replaced take nothing back");
    one.store.hold("a", "trip").unwrap().take_back(4).unwrap();
    assert_eq!(two.texts("trip").unwrap().len(), 4);
    let left = |deletions: &Deletions| -> Vec<Deletion> {
        deletions.all().into_iter().map(|(_, left)| left).collect()
    };
    assert_eq!(left(&of_two), left(&of_one));
    assert_eq!(left(&of_two)[0].chain().len(), 3);
}

#[test]
fn a_deletion_is_recorded_by_nodes_that_have_read_the_conversation_even_if_it_has_no_messages() {
    let memory: Arc<Memory> = Arc::default();
    let ((one, _), (two, of_two), (three, of_three)) =
        (Node::deleting(&memory), Node::deleting(&memory), Node::deleting(&memory));
    let key = ConversationKey { tenant: "a".to_owned(), id: one.say("trip", "1").unwrap() };
    assert_eq!(two.texts("trip").unwrap(), ["1"]);
    one.store.hold("a", "trip").unwrap().take_back(0).unwrap();
    assert_eq!(two.texts("trip").unwrap(), [""; 0]);
    assert_eq!(three.listed("a").len(), 1);
    one.store.hold("a", "trip").unwrap().delete().unwrap();
    one.settle();
    assert!(two.listed("a").is_empty() && three.listed("a").is_empty());
    let left = of_two.get(&key.owner()).expect("prompts of it may be noted");
    assert!(left.is_removed && !left.is_part && left.name.as_deref() == Some("trip"), "{left:?}");
    assert_eq!(of_three.all(), [], "a node that has never read it has made nothing of it");
}

#[test]
fn what_is_taken_back_leaves_the_store_though_its_mark_is_refused() {
    let (memory, one, two) = nodes();
    one.say("trip", "stays").unwrap();
    one.say("trip", "a secret").unwrap();
    one.settle();
    *one.link.refuses.lock().unwrap() = Some(CHANGED);
    one.store.hold("a", "trip").unwrap().take_back(1).unwrap();
    one.settle();
    assert_eq!(*one.link.refuses.lock().unwrap(), None, "a mark was refused");
    let (key, head) = one.store.find("a", "trip").unwrap();
    let records = memory.0.lock().unwrap();
    let is_secret = |record: &SharedRecord| String::from_utf8_lossy(&record.bytes).contains("a secret");
    assert!(!records.values().any(is_secret));
    let marks: Vec<&String> =
        records.keys().filter(|(kind, _)| kind == CHANGED).map(|(_, name)| name).collect();
    assert_eq!(marks, [&changed_name(&key, head.stamp)], "it is marked in the next round");
    drop(records);
    assert_eq!(two.listed("a").len(), 1);
}

/// Changes the record of a conversation in the store, as a node with another clock would have written it.
fn rewrite(memory: &Memory, key: &ConversationKey, change: impl FnOnce(&mut Value)) {
    let mut records = memory.0.lock().unwrap();
    let record = records.get_mut(&(CONVERSATION.to_owned(), conversation_name(key))).unwrap();
    let mut value: Value = serde_json::from_slice(&record.bytes).unwrap();
    change(&mut value["state"]);
    record.bytes = serde_json::to_vec(&value).unwrap();
}

#[test]
fn a_deletion_by_a_node_whose_clock_is_behind_is_remembered_by_all() {
    let (memory, one, two) = nodes();
    let three = Node::new(&memory);
    let id = one.say("trip", "1").unwrap();
    assert_eq!(three.texts("trip").unwrap(), ["1"]);
    one.store.hold("a", "trip").unwrap().delete().unwrap();
    one.settle();
    let key = ConversationKey { tenant: "a".to_owned(), id: id.clone() };
    rewrite(&memory, &key, |state| state["deleted"]["at"] = json!(1));
    for _ in 0..2 {
        assert!(two.listed("a").is_empty());
        two.settle();
    }
    let marks = || (count(&memory, CONVERSATION), count(&memory, CHANGED));
    assert_eq!(marks(), (1, 1), "the mark is new to this node");
    for reference in ["trip", &id] {
        assert!(matches!(refusal(three.texts(reference)), ConversationError::NotFound(_)));
    }
    three.settle();
    assert!(one.listed("a").is_empty() && three.listed("a").is_empty());
    // As if it had known the mark for days.
    let days = Duration::from_secs(2 * 24 * 3600);
    for gone in two.store.shelf.fleet.as_ref().unwrap().listing.lock().unwrap().gone.values_mut() {
        gone.since = gone.since.checked_sub(days).unwrap();
    }
    assert!(two.listed("a").is_empty());
    two.settle();
    assert_eq!(marks(), (0, 0), "it is removed at last");
    assert!(two.listed("a").is_empty());
    let listing = two.store.shelf.fleet.as_ref().unwrap().listing.lock().unwrap();
    assert!(listing.gone.is_empty(), "and forgotten");
}

#[test]
fn the_record_of_a_name_that_has_been_free_for_long_is_removed() {
    let (memory, one, two) = nodes();
    for name in ["stays", "free", "long free"] {
        one.say(name, "1").unwrap();
    }
    for name in ["free", "long free"] {
        one.store.hold("a", name).unwrap().delete().unwrap();
    }
    one.settle();
    let of = |name: &str| (NAME.to_owned(), name_name("a", name));
    {
        let mut records = memory.0.lock().unwrap();
        let record = records.get_mut(&of("long free")).unwrap();
        let mut claim: NameClaim = serde_json::from_slice(&record.bytes).unwrap();
        claim.until -= 8 * 24 * 3600 * 1000;
        record.bytes = serde_json::to_vec(&claim).unwrap();
    }
    two.store.hear_deletions();
    let is_there = |name| memory.0.lock().unwrap().contains_key(&of(name));
    assert_eq!(["stays", "free", "long free"].map(is_there), [true, true, false]);
    two.say("long free", "2").unwrap();
    assert_eq!(one.texts("long free").unwrap(), ["2"], "it is a name like any other");
}

#[test]
fn a_deletion_is_not_older_than_the_last_change() {
    let (memory, one, _) = nodes();
    let id = one.say("trip", "1").unwrap();
    let (key, updated) = (ConversationKey { tenant: "a".to_owned(), id }, 4_000_000_000_u64);
    rewrite(&memory, &key, |state| state["kept"]["head"]["updated"] = json!(updated));
    one.store.hold("a", "trip").unwrap().delete().unwrap();
    rewrite(&memory, &key, |state| assert_eq!(state["deleted"]["at"], json!(updated)));
}
