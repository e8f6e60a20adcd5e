use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::context::leading_systems;
use proptest::prelude::*;
use serde_json::Value;

use super::limits::{CONVERSATIONS_MAX, TENANT_BYTES_MAX};
use super::twin::{NAMES, TENANTS, Twin, new_messages, said};
use super::*;
use crate::deletions::Deletions;
use crate::records::{FILE_NAME, Records};

fn open(folder: &Path) -> std::sync::Arc<Conversations> {
    Conversations::open(Some(&Records::open(folder, Duration::ZERO).unwrap()))
}

fn refusal<T>(result: Result<T, ConversationError>) -> ConversationError {
    result.err().expect("it is refused")
}

/// An operation on one of three conversations of one of two tenants.
#[derive(Debug, Clone)]
enum Operation {
    /// An answered turn: the numbers of system messages and of other messages that it adds.
    Turn(usize, usize),
    /// A turn that is given up.
    GivenUp,
    TakeBack(usize),
    Rename(usize),
    Delete,
    /// A new conversation that begins with this many messages of this one.
    Branch(usize),
    Reopen,
}

fn operations() -> impl Strategy<Value = Vec<(usize, usize, Operation)>> {
    let operation = prop_oneof![
        6 => (0..3_usize, 1..4_usize).prop_map(|(systems, others)| Operation::Turn(systems, others)),
        1 => Just(Operation::GivenUp),
        2 => (0..9_usize).prop_map(Operation::TakeBack),
        1 => (0..3_usize).prop_map(Operation::Rename),
        1 => Just(Operation::Delete),
        1 => (0..9_usize).prop_map(Operation::Branch),
        1 => Just(Operation::Reopen),
    ];
    prop::collection::vec((0..2_usize, 0..3_usize, operation), 1..40)
}

fn step(
    store: &std::sync::Arc<Conversations>,
    twin: &mut Twin,
    number: usize,
    (tenant, name, operation): &(usize, usize, Operation),
) {
    let (place, who, what) = ((*tenant, *name), TENANTS[*tenant], NAMES[*name]);
    let known = twin.get(&place).cloned();
    match operation {
        Operation::Turn(systems, others) => {
            twin::turn(store, twin, place, &new_messages(number, *systems, *others));
        }
        Operation::GivenUp => drop(store.hold_or_begin(who, what).unwrap()),
        Operation::TakeBack(from) => twin::take_back(store, twin, place, *from),
        Operation::Rename(other) => twin::rename(store, twin, place, *other),
        Operation::Delete => twin::delete(store, twin, place),
        Operation::Branch(upto) => {
            let free = (0..3).find(|other| !twin.contains_key(&(*tenant, *other)));
            if let (Some(free), Some(mut said)) = (free, known) {
                said.truncate(*upto);
                store.begin(who, Some(NAMES[free])).unwrap().append(&said).unwrap();
                twin.insert((*tenant, free), said);
            }
        }
        Operation::Reopen => {}
    }
}

fn check(store: &Conversations, twin: &Twin) {
    for (tenant, who) in TENANTS.iter().enumerate() {
        let count = twin.keys().filter(|(of, _)| *of == tenant).count();
        assert_eq!(store.of(who).len(), count);
        for (name, what) in NAMES.iter().enumerate() {
            match (twin.get(&(tenant, name)), store.read(who, what)) {
                (None, Err(ConversationError::NotFound(_))) => {}
                (Some(said), Ok((key, head, messages))) => {
                    assert_eq!(
                        (&messages, head.messages, head.systems),
                        (said, said.len(), leading_systems(said))
                    );
                    assert_eq!(head.bytes == 0, said.is_empty(), "{head:?}");
                    assert!(store.read(TENANTS[1 - tenant], &key.id).is_err(), "another tenant's");
                }
                (expect, found) => panic!("{who} {what}: {expect:?} and {found:?}"),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn conversations_are_what_was_said_in_them_also_after_a_restart(operations in operations()) {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, mut twin) = (open(dir.path()), Twin::new());
        for (number, operation) in operations.iter().enumerate() {
            step(&store, &mut twin, number, operation);
            if matches!(operation.2, Operation::Reopen) {
                drop(store);
                store = open(dir.path());
            }
            check(&store, &twin);
        }
    }
}

#[test]
fn bytes_are_counted_as_they_come_and_go() {
    let store = Conversations::open(None);
    let mut held = store.begin("a", None).unwrap();
    held.append(&[said("system", "Be brief."), said("user", "Hello.")]).unwrap();
    let first = held.head().bytes;
    held.append(&[said("system", "Be brief, please."), said("user", "Hello.")]).unwrap();
    let message = held.head().bytes - first - ", please".len() as u64;
    assert!(message > 30, "{message}");
    held.take_back(2).unwrap();
    assert_eq!(held.head().bytes, first + ", please".len() as u64);
    held.take_back(0).unwrap();
    assert_eq!(held.head().bytes, 0);
}

#[test]
fn one_changes_it_at_a_time_and_whoever_leaves_makes_room() {
    let store = Conversations::open(None);
    let mut held = store.hold_or_begin("a", "x").unwrap();
    assert!(
        matches!(refusal(store.hold_or_begin("a", "x")), ConversationError::Busy(_)),
        "it is not there yet"
    );
    assert!(matches!(refusal(store.begin("a", Some("x"))), ConversationError::NameTaken(_)));
    store.hold_or_begin("b", "x").unwrap();
    held.append(&[]).unwrap();
    let id = held.key().id.clone();
    assert!(matches!(refusal(store.hold("a", "x")), ConversationError::Busy(_)));
    assert!(matches!(refusal(store.hold("a", &id)), ConversationError::Busy(_)));
    assert!(matches!(refusal(store.hold("b", &id)), ConversationError::NotFound(_)));
    held.rename("y").unwrap();
    drop(held);
    assert_eq!(store.hold("a", "y").unwrap().key().id, id);
    assert!(matches!(refusal(store.hold("a", "x")), ConversationError::NotFound(_)), "its old name");
    assert!(matches!(refusal(store.hold("b", "x")), ConversationError::NotFound(_)), "what was given up");
}

#[test]
fn names_are_names() {
    let store = Conversations::open(None);
    for name in ["", "conv_1", "a\0b", "a\nb", &"x".repeat(129)] {
        assert!(matches!(refusal(store.begin("a", Some(name))), ConversationError::BadName), "{name:?}");
    }
    for name in ["a/b", "Ärger", "?", " ", &"x".repeat(128)] {
        store.begin("a", Some(name)).unwrap().append(&[]).unwrap();
        assert_eq!(store.find("a", name).unwrap().1.name.as_deref(), Some(name));
    }
    assert!(matches!(refusal(store.hold_or_begin("a", "conv_1")), ConversationError::NotFound(_)));
}

#[test]
fn those_changed_last_are_first() {
    let store = Conversations::open(None);
    for name in NAMES {
        store.begin("a", Some(name)).unwrap().append(&[]).unwrap();
    }
    store.hold("a", "y").unwrap().append(&[said("user", "Hello.")]).unwrap();
    let names: Vec<String> = store.of("a").into_iter().filter_map(|(_, head)| head.name).collect();
    assert_eq!(names, ["y", "z", "x"]);
    let (page, has_more) = store.page("a", None, 2).unwrap();
    assert!(page[1].1.name.as_deref() == Some("z") && has_more, "{page:?}");
    let (page, has_more) = store.page("a", Some(&page[1].0.id), 2).unwrap();
    assert!(page[0].1.name.as_deref() == Some("x") && page.len() == 1 && !has_more, "{page:?}");
    assert!(matches!(refusal(store.page("a", Some("conv_1"), 2)), ConversationError::NothingBehind(_)));
}

#[test]
fn a_tenant_has_a_bounded_number_and_bounded_bytes() {
    let store = Conversations::open(None);
    let mut held = store.begin("a", None).unwrap();
    let large = said("user", &"x".repeat(31 << 20));
    held.make_room(std::slice::from_ref(&large)).unwrap();
    held.append(std::slice::from_ref(&large)).unwrap();
    let two = [large.clone(), large.clone()];
    let error = refusal(held.make_room(std::slice::from_ref(&large)));
    assert!(error.to_string().contains("33554432 is the limit"), "{error}");
    assert!(refusal(store.begin("b", None).unwrap().make_room(&two)).to_string().contains("too many bytes"));
    let (hello, mut short) = (said("user", "Hello."), store.begin("b", None).unwrap());
    short.append(std::slice::from_ref(&hello)).unwrap();
    assert!(short.make_room(&vec![hello.clone(); MESSAGES_MAX - 1]).is_ok());
    assert!(refusal(short.make_room(&vec![hello; MESSAGES_MAX])).to_string().contains("too many messages"));
    {
        let mut shelf = store.shelf.heads();
        let head = ConversationHead { bytes: 1 << 20, ..ConversationHead::default() };
        for i in 1..CONVERSATIONS_MAX {
            let key = ConversationKey { tenant: "a".to_owned(), id: format!("conv_{i}") };
            shelf.all.insert(key, head.clone());
        }
    }
    let error = refusal(store.begin("a", None));
    assert!(error.to_string().contains("4096 of them"), "{error}");
    let error = refusal(held.make_room(&[]));
    assert!(matches!(error, ConversationError::AllFull { .. }), "{error}");
    store.begin("b", None).unwrap().make_room(&[large]).unwrap();
}

#[test]
fn metadata_counts_among_the_bytes_of_a_tenant() {
    let store = Conversations::open(None);
    let of_bytes = |bytes: usize| BTreeMap::from([("x".to_owned(), "x".repeat(bytes - 1))]);
    let mut held = store.begin("a", None).unwrap();
    let key = ConversationKey { tenant: "a".to_owned(), id: "conv_1".to_owned() };
    let (bytes, metadata) = (TENANT_BYTES_MAX - 9, of_bytes(4));
    let head = ConversationHead { bytes, metadata, ..ConversationHead::default() };
    store.shelf.heads().all.insert(key, head);
    let error = refusal(held.describe(of_bytes(6)));
    assert!(matches!(error, ConversationError::AllFull { .. }), "{error}");
    held.describe(of_bytes(5)).unwrap();
    held.append(&[]).unwrap();
    held.describe(of_bytes(2)).expect("there is always room for less");
    store.begin("b", None).unwrap().describe(of_bytes(6)).unwrap();
}

#[test]
fn a_lost_message_is_said_and_never_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let id = {
        let store = open(dir.path());
        let mut held = store.begin("a", Some("x")).unwrap();
        held.append(&[said("user", "1"), said("assistant", "2"), said("user", "3")]).unwrap();
        held.key().id.clone()
    };
    let lose = |index: usize| {
        let records = Records::open(dir.path(), Duration::ZERO).unwrap();
        let key = ConversationKey { tenant: "a".to_owned(), id: id.clone() }.message(index);
        records.table::<String>("conversations").change([key.as_str()], |_, _| Some("?".to_owned())).unwrap();
    };
    let damaged = |result: Result<Vec<Value>, ConversationError>| {
        assert!(matches!(refusal(result), ConversationError::Damaged(_)));
    };
    for index in [2, 1] {
        lose(index);
        let store = open(dir.path());
        damaged(store.read("a", "x").map(|(_, _, messages)| messages));
        damaged(store.hold("a", "x").unwrap().messages());
    }
    let store = open(dir.path());
    store.hold("a", "x").unwrap().delete().unwrap();
    assert!(store.of("a").is_empty());
}

#[test]
fn what_others_are_to_delete_is_written_down_before_anything_is_deleted() {
    let records = Records::in_memory();
    let deletions = Deletions::open(Some(&records));
    let store = Conversations::open_deleting(Some(&records), None, deletions.clone());
    let mut held = store.begin("a", Some("trip")).unwrap();
    held.append(&new_messages(0, 1, 4)).unwrap();
    held.take_back(3).unwrap();
    let owner = held.key().owner();
    drop(held);
    let parts = deletions.all();
    assert!(parts.len() == 1 && parts[0].1.is_part && parts[0].1.chain().len() == 2, "{parts:?}");
    store.hold("a", "trip").unwrap().delete().unwrap();
    let left = deletions.find("a", "trip").and_then(|owner| deletions.get(&owner)).unwrap();
    assert_eq!((left.chain().len(), left.is_removed, left.is_part), (2, true, false));
    assert_eq!(deletions.find("a", &owner.id), Some(owner.clone()));
    // As if the process had ended after the record and before the removal.
    let begun = left.begun_only();
    let mut held = store.begin("a", Some("trip")).unwrap();
    held.append(&new_messages(1, 0, 2)).unwrap();
    let again = held.key().owner();
    assert!(matches!(store.erase(&again, &begun), Err(ConversationError::Busy(_))), "somebody changes it");
    drop(held);
    store.erase(&again, &begun).unwrap();
    assert!(store.of("a").is_empty() && store.erase(&again, &begun).is_ok());
}

#[test]
fn nothing_stays_of_deleted_messages_that_cannot_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let records = Records::open(dir.path(), Duration::ZERO).unwrap();
    let deletions = Deletions::open(Some(&records));
    let store = Conversations::open_deleting(Some(&records), None, deletions.clone());
    let mut held = store.begin("a", Some("trip")).unwrap();
    held.append(&["1", "2", "3", "4"].map(|text| said("user", &format!("marker {text}")))).unwrap();
    let (key, foreign) = (held.key().clone(), records.table::<String>("conversations"));
    // The message is set aside, and what is under its key instead is no message.
    let damage = |index: usize| {
        foreign.change([key.message(index).as_str()], |_, _| Some("marker ?".to_owned())).unwrap();
    };
    damage(3);
    held.take_back(3).unwrap();
    damage(1);
    held.delete().unwrap();
    let left = deletions.get(&key.owner()).unwrap();
    assert_eq!(left.chain().len(), 1, "of the message before the lost one");
    let aside = records.table::<Value>("unreadable").all_from("").unwrap();
    assert_eq!((aside.records.len(), aside.unreadable.len()), (0, 0));
    records.rewrite().unwrap();
    let bytes = std::fs::read(dir.path().join(FILE_NAME)).unwrap();
    assert!(!bytes.windows(6).any(|window| window == b"marker"));
}
