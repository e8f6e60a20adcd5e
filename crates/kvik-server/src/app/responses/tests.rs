use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use super::{
    items::IDS_MAX,
    store::{BYTES_MAX, RESPONSES_MAX},
};
use crate::app::prompt_log::PromptLog;
use kvik_memory::records::Records;

fn stored(text: &str, previous: Option<&str>) -> StoredResponse {
    StoredResponse {
        response: json!({"id": text}),
        input: vec![json!(text)],
        said: vec![json!({"role": "user", "content": text}), json!({"role": "assistant", "content": text})],
        previous: previous.map(str::to_owned),
    }
}

/// A response that answered with items of these ids, to an input of these items.
fn with_items(output: &[&str], input: Vec<Value>) -> StoredResponse {
    let output: Vec<Value> = output.iter().map(|id| json!({"type": "message", "id": id})).collect();
    StoredResponse { response: json!({"output": output}), input, ..stored("x", None) }
}

/// The item of this id, if a request of the tenant may refer to it.
fn found(store: &Responses, tenant: &str, id: &str) -> Option<Value> {
    let reference = json!({"type": "item_reference", "id": id});
    store.items(tenant, &[id]).ok().map(|items| items.resolved(&reference).clone())
}

proptest! {
    /// Each response continues any earlier one or none; the messages up to it are those along the chain of its
    /// ancestors.
    #[test]
    fn what_was_said_up_to_an_answer_is_the_chain_of_all_before(parents in prop::collection::vec(0..8_usize, 1..8)) {
        let store = Responses::open(None, Arc::new(PromptLog::open(None)));
        let id = |at: usize| format!("resp_{at}");
        let previous = |at: usize| (parents[at] < at).then(|| parents[at]);
        for at in 0..parents.len() {
            let before = previous(at).map(id);
            store.keep("a", &id(at), &stored(&id(at), before.as_deref())).unwrap();
        }
        for at in 0..parents.len() {
            let mut expect = Vec::new();
            let mut next = Some(at);
            while let Some(at) = next {
                expect.splice(0..0, stored(&id(at), None).said);
                next = previous(at);
            }
            prop_assert_eq!(store.said_up_to("a", &id(at)).unwrap(), expect);
            prop_assert!(store.said_up_to("b", &id(at)).is_err(), "another tenant's does not exist");
        }
    }
}

#[test]
fn they_are_there_after_a_restart_and_gone_when_deleted() {
    let records = Records::in_memory();
    let store = Responses::open(Some(&records), Arc::new(PromptLog::open(None)));
    store.keep("a", "one", &stored("one", None)).unwrap();
    store.keep("a", "two", &stored("two", Some("one"))).unwrap();
    drop(store);
    let store = Responses::open(Some(&records), Arc::new(PromptLog::open(None)));
    assert_eq!(store.get("a", "two").unwrap(), stored("two", Some("one")));
    assert_eq!(store.said_up_to("a", "two").unwrap().len(), 4);
    store.delete("a", "one").unwrap();
    assert!(store.get("a", "one").is_err() && store.delete("a", "one").is_err());
    let broken = store.said_up_to("a", "two").unwrap_err().to_string();
    assert!(broken.contains("`one`"), "{broken}");
}

#[test]
fn the_oldest_are_forgotten_and_what_is_used_is_not() {
    let store = Responses::open(None, Arc::new(PromptLog::open(None)));
    store.keep("a", "root", &stored("root", None)).unwrap();
    store.keep("b", "other", &stored("other", None)).unwrap();
    store.keep("a", "referred", &with_items(&["msg_referred"], Vec::new())).unwrap();
    for at in 0..RESPONSES_MAX + 5 {
        if at % 64 == 0 {
            store.said_up_to("a", "root").unwrap();
            assert!(found(&store, "a", "msg_referred").is_some());
        }
        let response = match at {
            5..8 => with_items(
                &[format!("msg_{at}").as_str()],
                vec![json!({"id": format!("in_{at}"), "role": "user"})],
            ),
            _ => stored("x", None),
        };
        store.keep("a", &format!("r{at}"), &response).unwrap();
    }
    assert!(store.get("a", "root").is_ok() && store.get("b", "other").is_ok());
    assert!(store.get("a", "r6").is_err() && store.get("a", "r7").is_ok());
    for (id, is_found) in
        [("msg_referred", true), ("msg_6", false), ("in_6", false), ("msg_7", true), ("in_7", true)]
    {
        assert_eq!(found(&store, "a", id).is_some(), is_found, "{id}");
    }
}

#[test]
fn an_item_is_found_as_long_as_its_response_is_stored() {
    let records = Records::in_memory();
    let open = || Responses::open(Some(&records), Arc::new(PromptLog::open(None)));
    let given = |id: &str, text: &str| json!({"id": id, "role": "user", "content": text});
    let input = vec![given("msg_in", "x"), given("rs_out", "y"), json!({"id": "msg_out"})];
    let store = open();
    store.keep("a", "one", &with_items(&["rs_out", "msg_out"], Vec::new())).unwrap();
    store.keep("a", "two", &with_items(&[], input)).unwrap();
    drop(store);
    let store = open();
    let expect = |id: &str| Some(json!({"type": "message", "id": id}));
    assert_eq!(found(&store, "a", "msg_out"), expect("msg_out"));
    assert_eq!(found(&store, "a", "rs_out"), expect("rs_out"), "as it was answered, not as it was sent back");
    assert_eq!(found(&store, "a", "msg_in"), Some(given("msg_in", "x")));
    assert_eq!(found(&store, "b", "msg_out"), None, "another tenant's does not exist");
    store.delete("a", "one").unwrap();
    assert_eq!(found(&store, "a", "rs_out"), Some(given("rs_out", "y")));
    let missing = store.items("a", &["msg_in", "msg_out"]).unwrap_err().to_string();
    assert_eq!(missing, "Item with id 'msg_out' not found.", "a reference to it is not the item");
    let left = records.table::<Value>("responses").all_from("").unwrap().records;
    assert!(left.iter().all(|(name, _)| name.ends_with("two")), "{left:?}");
}

#[test]
fn the_ids_that_are_found_have_a_limit() {
    let store = Responses::open(None, Arc::new(PromptLog::open(None)));
    let (items, long) = (2 * IDS_MAX, "x".repeat(65));
    let input = (0..items).map(|at| json!({"id": format!("in_{at}"), "role": "user"})).collect();
    store.keep("a", "one", &with_items(&["msg_out", long.as_str()], input)).unwrap();
    let is_found = |id: &str| found(&store, "a", id).is_some();
    assert!(is_found("msg_out") && !is_found(&long));
    let first = items - (IDS_MAX - 1);
    assert!(is_found(&format!("in_{first}")) && !is_found(&format!("in_{}", first - 1)));
}

#[test]
fn an_answer_that_is_left_can_be_continued() {
    let store = Responses::open(None, Arc::new(PromptLog::open(None)));
    for (id, previous) in [("c0", None), ("c1", Some("c0")), ("c2", Some("c1"))] {
        if let Some(previous) = previous {
            store.said_up_to("a", previous).unwrap();
        }
        store.keep("a", id, &stored(id, previous)).unwrap();
    }
    for at in 0..RESPONSES_MAX {
        store.keep("a", &format!("r{at}"), &stored("x", None)).unwrap();
        if at % 64 > 0 && at + 8 < RESPONSES_MAX {
            continue;
        }
        let left = ["c0", "c1", "c2"].map(|id| store.get("a", id).is_ok());
        let gone = (at + 4).saturating_sub(RESPONSES_MAX).min(3);
        assert_eq!(left, [gone < 3, gone < 2, gone < 1], "the newest of an unused conversation goes first");
    }
}

/// The answer before it was forgotten to make room, and it could not be continued.
#[test]
fn none_is_forgotten_for_an_answer_that_continues_it() {
    let is_full = |kept: Result<(), ResponseError>| matches!(kept, Err(ResponseError::ChainFull { .. }));
    let id = |at: usize| format!("r{at}");
    let head = |at: usize| json!({"head": {"previous": at.checked_sub(1).map(id), "bytes": 1, "order": at}});
    let last = RESPONSES_MAX - 1;
    let heads: BTreeMap<String, Value> =
        (0..last).map(|at| (format!("head\0a\0{}", id(at)), head(at))).collect();
    let records = Records::in_memory();
    let table = records.table::<Value>("responses");
    table.change(heads.keys().map(String::as_str), |name, _| heads.get(name).cloned()).unwrap();
    let store = Responses::open(Some(&records), Arc::new(PromptLog::open(None)));
    store.keep("a", &id(last), &stored("x", Some(&id(last - 1)))).unwrap();
    assert!(is_full(store.keep("a", "more", &stored("x", Some(&id(last))))));
    assert_eq!(store.used("a", &id(last)).unwrap().len(), RESPONSES_MAX);
    // Its text is four times in a response.
    let long = "x".repeat(BYTES_MAX as usize / 8);
    store.keep("b", "first", &stored(&long, None)).unwrap();
    assert!(is_full(store.keep("b", "second", &stored(&long, Some("first")))));
    let next = |input: &str| ResponseTurn {
        store: store.clone(),
        tenant: "b".to_owned(),
        id: "next".to_owned(),
        previous: Some("first".to_owned()),
        input: vec![json!(input)],
        new: Vec::new(),
    };
    assert!(
        next("x").check_room(&Value::Null).is_ok()
            && is_full(next(&long.repeat(5)).check_room(&Value::Null))
            && is_full(next("x").check_room(&json!({"instructions": long.repeat(5)}))),
        "it is told before"
    );
    assert_eq!(store.said_up_to("b", "first").unwrap().len(), 2);
    store.keep("b", "apart", &stored(&long, None)).unwrap();
    assert!(store.get("b", "first").is_err(), "another conversation takes its room");
    let behind = store.keep("b", "second", &stored("x", Some("first")));
    assert!(matches!(behind, Err(ResponseError::NotFound(_))), "nothing continues what is gone");
}

#[test]
fn a_deletion_leaves_nothing_of_what_cannot_be_read() {
    let records = Records::in_memory();
    let open = || Responses::open(Some(&records), Arc::new(PromptLog::open(None)));
    let words = records.table::<String>("responses");
    for name in ["body\0a\0one", "head\0a\0one"] {
        open().keep("a", "one", &stored("one", None)).unwrap();
        words.change([name], |_, _| Some("a secret".to_owned())).unwrap();
        let store = open();
        assert!(store.delete("b", "one").is_err() && store.get("a", "one").is_err(), "{name:?}");
        store.delete("a", "one").unwrap();
        let left = records.table::<Value>("responses").all_from("").unwrap();
        assert!(left.records.is_empty() && left.unreadable.is_empty(), "{name:?}: {left:?}");
        assert!(store.delete("a", "one").is_err());
    }
}
