//! Tests of shared conversations, with a store that works and with one that fails.

mod deletions;
mod leases;
mod memory;
mod model;
mod outages;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::Value;

use crate::conversations::fleet::record::{CHANGED, CONVERSATION, NAME, SAID, tenant_tag};
use crate::conversations::shelf::Shelf;
use crate::conversations::twin::said;
use crate::conversations::{ConversationError, Conversations, fleet, sharing};
use crate::deletions::Deletions;
use crate::records::Records;
use memory::{Link, Memory};

/// A node with its records and its link to the store.
struct Node {
    records: Records,
    link: Arc<Link>,
    store: Arc<Conversations>,
}

impl Node {
    fn new(memory: &Arc<Memory>) -> Node {
        Node::leasing(memory, fleet::LEASE)
    }

    fn leasing(memory: &Arc<Memory>, lease: Duration) -> Node {
        let (records, link) = (Records::in_memory(), Link::to(memory));
        let store = open(&records, &link, lease);
        Node { records, link, store }
    }

    /// A node that records deletions, and these.
    fn deleting(memory: &Arc<Memory>) -> (Node, Arc<Deletions>) {
        let (records, link, deletions) = (Records::in_memory(), Link::to(memory), Deletions::open(None));
        let shelf = Shelf::open(Some(&records), Some(link.clone())).deleting(deletions.clone());
        (Node { records, link, store: start(shelf, fleet::LEASE) }, deletions)
    }

    fn restart(&mut self) {
        let fleet = self.store.shelf.fleet.as_ref().unwrap();
        let lease = fleet.lease;
        fleet.queue.end_at_once();
        // The file is closed before it is opened again.
        self.store = Conversations::open(None);
        self.store = open(&self.records, &self.link, lease);
    }

    fn settle(&self) {
        self.store.shelf.fleet.as_ref().unwrap().queue.settle();
    }

    fn say(&self, reference: &str, text: &str) -> Result<String, ConversationError> {
        let mut held = self.store.hold_or_begin("a", reference)?;
        held.append(&[said("user", text)])?;
        Ok(held.key().id.clone())
    }

    fn texts(&self, reference: &str) -> Result<Vec<String>, ConversationError> {
        let (_, _, messages) = self.store.read("a", reference)?;
        Ok(messages.iter().map(|message| message["content"].as_str().unwrap().to_owned()).collect())
    }

    /// Listed names, after a fresh listing.
    fn listed(&self, tenant: &str) -> Vec<Option<String>> {
        self.store.shelf.fleet.as_ref().unwrap().listing.lock().unwrap().read = None;
        self.store.of(tenant).into_iter().map(|(_, head)| head.name).collect()
    }
}

fn open(records: &Records, link: &Arc<Link>, lease: Duration) -> Arc<Conversations> {
    start(Shelf::open(Some(records), Some(link.clone())), lease)
}

fn start(mut shelf: Shelf, lease: Duration) -> Arc<Conversations> {
    let fleet = shelf.fleet.as_mut().unwrap();
    // Threads of tests wait longer for each other than a turn does.
    (fleet.lease, fleet.store.patience) = (lease, Duration::from_secs(60));
    let shelf = Arc::new(shelf);
    sharing::start(&shelf);
    Arc::new(Conversations { shelf })
}

fn nodes() -> (Arc<Memory>, Node, Node) {
    let memory = Arc::default();
    let nodes = [Node::new(&memory), Node::new(&memory)];
    let [one, two] = nodes;
    (memory, one, two)
}

fn refusal<T>(result: Result<T, ConversationError>) -> ConversationError {
    result.err().expect("it is refused")
}

fn count(memory: &Memory, kind: &str) -> usize {
    memory.0.lock().unwrap().keys().filter(|(of, _)| of == kind).count()
}

#[test]
fn what_is_said_at_one_node_is_gone_on_with_at_another() {
    let (memory, one, two) = nodes();
    let id = one.say("trip", "1").unwrap();
    assert_eq!(two.texts("trip").unwrap(), ["1"]);
    assert_eq!(two.texts(&id).unwrap(), ["1"]);
    assert_eq!(two.say("trip", "2").unwrap(), id);
    assert_eq!(one.texts("trip").unwrap(), ["1", "2"]);
    one.store.hold("a", "trip").unwrap().append(&[said("system", "Be brief."), said("user", "3")]).unwrap();
    two.store.hold("a", "trip").unwrap().rename("Oslo").unwrap();
    assert_eq!(one.texts("Oslo").unwrap(), ["Be brief.", "1", "2", "3"]);
    assert!(matches!(refusal(one.texts("trip")), ConversationError::NotFound(_)));
    one.store.hold("a", "Oslo").unwrap().take_back(2).unwrap();
    assert_eq!(two.texts(&id).unwrap(), ["Be brief.", "1"]);
    [&one, &two].iter().for_each(|node| node.settle());
    assert_eq!(two.listed("a"), [Some("Oslo".to_owned())]);
    two.store.hold("a", "Oslo").unwrap().delete().unwrap();
    assert!(matches!(refusal(one.texts(&id)), ConversationError::NotFound(_)));
    assert!(matches!(refusal(one.store.hold("a", "Oslo")), ConversationError::NotFound(_)));
    two.settle();
    assert!(one.listed("a").is_empty() && two.listed("a").is_empty());
    assert_eq!((count(&memory, SAID), count(&memory, CHANGED)), (0, 1), "nothing is left of what was said");
    assert_ne!(one.say("trip", "new").unwrap(), id, "the name is free again");
    assert_ne!(one.say("Oslo", "new").unwrap(), id, "and this one");
}

#[test]
fn nodes_that_write_and_read_at_once_see_whole_turns() {
    let (memory, one, two) = nodes();
    let reader = Node::new(&memory);
    one.say("trip", "one 0").unwrap();
    let turns = |node: &Node, name: &str| {
        for number in 1..30 {
            let text = format!("{name} {number}");
            while let Err(error) = node.say("trip", &text) {
                assert!(matches!(error, ConversationError::Busy(_)), "{error}");
            }
        }
    };
    let expect = 1 + 2 * 29;
    std::thread::scope(|scope| {
        scope.spawn(|| turns(&one, "one"));
        scope.spawn(|| turns(&two, "two"));
        let mut before: Vec<String> = Vec::new();
        while before.len() < expect {
            let texts = reader.texts("trip").unwrap();
            assert!(texts.starts_with(&before), "{before:?} and then {texts:?}");
            before = texts;
        }
    });
    assert_eq!(one.texts("trip").unwrap(), two.texts("trip").unwrap());
    assert_eq!(reader.listed("a").len(), 1);
}

#[test]
fn tenants_have_nothing_in_common() {
    let (memory, one, two) = nodes();
    let id = one.say("trip", "1").unwrap();
    for reference in ["trip", &id] {
        assert!(matches!(refusal(two.store.read("b", reference)), ConversationError::NotFound(_)));
        assert!(matches!(refusal(two.store.hold("b", reference)), ConversationError::NotFound(_)));
    }
    one.settle();
    assert!(two.listed("b").is_empty());
    assert_ne!(tenant_tag("a"), tenant_tag("b"));
    for id in ["conv_", "conv_0", "conv_../../../../../../etc/passwd", &format!("conv_{}", "0".repeat(500))] {
        assert!(matches!(refusal(two.texts(id)), ConversationError::NotFound(_)), "{id}");
    }
    assert!(memory.0.lock().unwrap().keys().all(|(_, name)| !name.contains("trip")));
}

#[test]
fn a_turn_writes_the_end_of_a_conversation_and_not_all_of_it() {
    let (memory, one, two) = nodes();
    let text = "x".repeat(500);
    let messages: Vec<Value> = (0..1000).map(|i| said("user", &format!("{i} {text}"))).collect();
    one.store.begin("a", Some("long")).unwrap().append(&messages).unwrap();
    one.settle();
    let segments = count(&memory, SAID);
    assert_eq!(segments, 1000_usize.div_ceil(64));
    let (put, calls) = (&one.link.put_bytes, &one.link.calls);
    let before = (put.load(Ordering::SeqCst), calls.load(Ordering::SeqCst));
    one.say("long", "next").unwrap();
    one.settle();
    let asked = calls.load(Ordering::SeqCst) - before.1;
    let bytes = put.load(Ordering::SeqCst) - before.0;
    assert!(bytes < 64 << 10, "{bytes} bytes of {}", 1000 * text.len());
    assert_eq!(
        asked, 7,
        "read, leased, a segment, the head; behind the turn two marks, and a segment is swept"
    );
    assert_eq!(count(&memory, SAID), segments);
    assert_eq!(two.texts("long").unwrap().len(), 1001);
    let calls = two.link.calls.load(Ordering::SeqCst);
    one.say("long", "once more").unwrap();
    assert_eq!(two.texts("long").unwrap().len(), 1002);
    let asked = two.link.calls.load(Ordering::SeqCst) - calls;
    assert!(asked <= 2, "the head, and the segment that is new: {asked}");
}

#[test]
fn a_message_that_is_longer_than_a_record_has_several() {
    let (memory, one, two) = nodes();
    let text = "x".repeat(20 << 20);
    one.say("long", &text).unwrap();
    one.settle();
    assert_eq!(count(&memory, SAID), 3);
    assert!(two.texts("long").unwrap() == [text]);
    two.store.hold("a", "long").unwrap().take_back(0).unwrap();
    two.settle();
    assert_eq!(count(&memory, SAID), 0);
}

#[test]
fn what_is_no_conversation_is_refused() {
    let memory = Arc::default();
    let one = Node::new(&memory);
    one.say("trip", "1").unwrap();
    one.settle();
    let kinds = [SAID, CONVERSATION, NAME];
    for kind in kinds {
        for bytes in [&b""[..], b"{}", b"[]", b"[1,2]", b"\xff", b"{\"state\":{\"kept\":{}}}"] {
            let mut records = memory.0.lock().unwrap();
            let record = records.iter_mut().find(|((of, _), _)| of == kind).unwrap().1;
            let kept = std::mem::replace(&mut record.bytes, bytes.to_vec());
            drop(records);
            let two = Node::new(&memory);
            let error = refusal(two.texts("trip"));
            assert!(matches!(error, ConversationError::Elsewhere(_)), "{kind} {bytes:?}: {error}");
            assert!(two.listed("a").len() <= 1);
            let mut records = memory.0.lock().unwrap();
            records.iter_mut().find(|((of, _), _)| of == kind).unwrap().1.bytes = kept;
        }
    }
    assert_eq!(Node::new(&memory).texts("trip").unwrap(), ["1"]);
}
