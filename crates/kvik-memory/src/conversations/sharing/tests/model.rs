//! Random requests to three nodes, compared with a reference model.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::context::leading_systems;
use crate::conversations::Held;
use crate::conversations::twin::{self, NAMES, TENANTS, Twin, new_messages};

const NODES: usize = 3;
#[derive(Debug, Clone)]
enum Operation {
    /// Numbers of system messages and of other messages.
    Turn(usize, usize),
    GivenUp,
    TakeBack(usize),
    Rename(usize),
    Delete,
    Branch(usize),
    /// A turn held by this node, while the node this many further on is asked for the same conversation.
    Beside(usize),
    Restart,
}

type Step = (usize, usize, usize, Operation);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let operation = prop_oneof![
        6 => (0..3_usize, 1..100_usize).prop_map(|(systems, others)| Operation::Turn(systems, others)),
        1 => Just(Operation::GivenUp),
        2 => (0..99_usize).prop_map(Operation::TakeBack),
        2 => (0..3_usize).prop_map(Operation::Rename),
        1 => Just(Operation::Delete),
        1 => (0..99_usize).prop_map(Operation::Branch),
        2 => (1..NODES).prop_map(Operation::Beside),
        1 => Just(Operation::Restart),
    ];
    prop::collection::vec((0..NODES, 0..TENANTS.len(), 0..NAMES.len(), operation), 1..30)
}

fn perform(nodes: &mut [Node], twin: &mut Twin, number: usize, (node, tenant, name, operation): &Step) {
    let (place, who, what) = ((*tenant, *name), TENANTS[*tenant], NAMES[*name]);
    if matches!(operation, Operation::Restart) {
        return nodes[*node].restart();
    }
    let (known, store) = (twin.get(&place).cloned(), &nodes[*node].store);
    match operation {
        Operation::Turn(systems, others) => {
            twin::turn(store, twin, place, &new_messages(number, *systems, *others));
        }
        Operation::GivenUp => drop(store.hold_or_begin(who, what).unwrap()),
        Operation::TakeBack(from) => twin::take_back(store, twin, place, *from),
        Operation::Rename(other) => twin::rename(store, twin, place, *other),
        Operation::Delete => twin::delete(store, twin, place),
        Operation::Branch(upto) => {
            let begun = store.begin(who, Some(what));
            assert_eq!(begun.is_ok(), known.is_none());
            let other = store.read(who, NAMES[(*name + 1) % NAMES.len()]);
            if let (Ok(mut begun), Ok((_, _, mut said))) = (begun, other) {
                said.truncate(*upto);
                begun.append(&said).unwrap();
                twin.insert(place, said);
            }
        }
        Operation::Beside(step) => {
            let other = &nodes[(*node + step) % NODES].store;
            let mut held = store.hold_or_begin(who, what).unwrap();
            assert!(matches!(refusal(other.hold_or_begin(who, what)), ConversationError::Busy(_)));
            twin::append(&mut held, twin, place, &new_messages(number, 0, 1));
        }
        Operation::Restart => {}
    }
    // An unused lease or name is released in the background.
    nodes[*node].settle();
}

fn check(node: &Node, twin: &Twin) {
    for (tenant, who) in TENANTS.iter().enumerate() {
        let expect: BTreeSet<Option<String>> = twin
            .keys()
            .filter(|(of, _)| *of == tenant)
            .map(|(_, name)| Some(NAMES[*name].to_owned()))
            .collect();
        let listed = node.listed(who);
        assert_eq!((listed.len(), listed.into_iter().collect()), (expect.len(), expect));
        for (name, what) in NAMES.iter().enumerate() {
            match (twin.get(&(tenant, name)), node.store.read(who, what)) {
                (None, Err(ConversationError::NotFound(_))) => {}
                (Some(said), Ok((_, head, messages))) => {
                    assert_eq!((&messages, head.systems), (said, leading_systems(said)));
                    assert_eq!((head.messages, head.bytes == 0), (said.len(), said.is_empty()), "{head:?}");
                }
                (expect, found) => panic!("{who} {what}: {expect:?} and {found:?}"),
            }
        }
    }
}

/// An event at a node, or at its link, which may be cut.
#[derive(Debug, Clone)]
enum Event {
    Turn(usize),
    Begin(usize),
    Rename(usize),
    Cut(bool),
    LosesAnswers(bool),
    Restart,
}

fn events() -> impl Strategy<Value = Vec<(usize, Event)>> {
    let event = prop_oneof![
        8 => (0..3_usize).prop_map(Event::Turn),
        1 => (0..3_usize).prop_map(Event::Begin),
        1 => (0..3_usize).prop_map(Event::Rename),
        2 => any::<bool>().prop_map(Event::Cut),
        1 => any::<bool>().prop_map(Event::LosesAnswers),
        1 => Just(Event::Restart),
    ];
    prop::collection::vec((0..NODES, event), 1..40)
}

/// Appends a message that refers to the one before it, as far as its node knows.
fn follow(held: &mut Held, number: usize) -> Result<(), ConversationError> {
    let before = held.messages()?.last().map_or("nothing".to_owned(), |last| last["id"].to_string());
    held.append(&[json!({"role": "user", "content": "x", "id": number, "after": before})])
}

/// True if the client was told that its message was written.
fn happen(node: &mut Node, number: usize, event: &Event) -> bool {
    let written = match event {
        Event::Turn(name) => {
            node.store.hold_or_begin("a", NAMES[*name]).and_then(|mut held| follow(&mut held, number))
        }
        Event::Begin(name) => {
            node.store.begin("a", Some(NAMES[*name])).and_then(|mut held| follow(&mut held, number))
        }
        Event::Rename(name) => {
            let other = NAMES[(*name + 1) % NAMES.len()];
            let _ = node.store.hold("a", NAMES[*name]).and_then(|mut held| held.rename(other));
            return false;
        }
        Event::Cut(is_down) => {
            node.link.set_down(*is_down);
            return false;
        }
        Event::LosesAnswers(does) => {
            node.link.loses_answers.store(*does, Ordering::SeqCst);
            return false;
        }
        Event::Restart => {
            node.restart();
            return false;
        }
    };
    match written {
        Ok(()) | Err(ConversationError::Forked { .. }) => true,
        Err(
            ConversationError::Busy(_) | ConversationError::Elsewhere(_) | ConversationError::NameTaken(_),
        ) => false,
        Err(error) => panic!("{error}"),
    }
}

/// All conversations of a node, by id.
fn all(node: &Node) -> BTreeMap<String, (Option<String>, Vec<Value>)> {
    node.listed("a");
    let ids = node.store.of("a").into_iter().map(|(key, _)| key.id);
    let read = |id: String| {
        let (_, head, messages) = node.store.read("a", &id).unwrap();
        (id, (head.name, messages))
    };
    ids.map(read).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(kvik_testing::effort(16, 32)))]

    #[test]
    fn three_nodes_are_as_one(steps in steps()) {
        let memory = Arc::default();
        let mut nodes: Vec<Node> = (0..NODES).map(|_| Node::new(&memory)).collect();
        let mut twin = Twin::new();
        for (number, step) in steps.iter().enumerate() {
            perform(&mut nodes, &mut twin, number, step);
            check(&nodes[number % NODES], &twin);
        }
        nodes.iter().for_each(|node| check(node, &twin));
    }

    #[test]
    fn whatever_fails_nothing_is_lost_and_nothing_interleaved(events in events()) {
        let memory = Arc::default();
        let lease = Duration::from_millis(20);
        let mut nodes: Vec<Node> = (0..NODES).map(|_| Node::leasing(&memory, lease)).collect();
        let mut written = BTreeSet::new();
        for (number, (node, event)) in events.iter().enumerate() {
            if happen(&mut nodes[*node], number, event) {
                written.insert(number as u64);
            }
        }
        for node in &nodes {
            node.link.set_down(false);
            node.link.loses_answers.store(false, Ordering::SeqCst);
        }
        // A late write of one node may conflict with another's copy, which then has a fork to write.
        (0..NODES).for_each(|_| nodes.iter().for_each(Node::settle));
        let kept = all(&nodes[0]);
        for node in &nodes[1..] {
            prop_assert_eq!(&all(node), &kept);
        }
        let names: Vec<&String> = kept.values().filter_map(|(name, _)| name.as_ref()).collect();
        prop_assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{:?}", names);
        let mut found = BTreeSet::new();
        for (_, messages) in kept.values() {
            let mut before = "nothing".to_owned();
            for message in messages {
                prop_assert_eq!(&message["after"], &json!(before));
                before = message["id"].to_string();
                found.insert(message["id"].as_u64().unwrap());
            }
        }
        prop_assert!(written.is_subset(&found), "{:?} of {:?}", written, found);
    }
}
