use proptest::prelude::*;
use serde_json::json;

use super::store::RESPONSES_MAX;
use super::*;
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
    for at in 0..RESPONSES_MAX + 5 {
        store.said_up_to("a", "root").unwrap();
        store.keep("a", &format!("r{at}"), &stored("x", None)).unwrap();
    }
    assert!(store.get("a", "root").is_ok() && store.get("b", "other").is_ok());
    assert!(store.get("a", "r5").is_err() && store.get("a", "r6").is_ok());
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
        let left = ["c0", "c1", "c2"].map(|id| store.get("a", id).is_ok());
        let gone = (at + 4).saturating_sub(RESPONSES_MAX).min(3);
        assert_eq!(left, [gone < 3, gone < 2, gone < 1], "the newest of an unused conversation goes first");
    }
}
