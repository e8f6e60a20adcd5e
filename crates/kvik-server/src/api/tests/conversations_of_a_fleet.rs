//! Conversations that two servers share, over their routes.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use axum::http::StatusCode;
use kvik_engine::api::FinishReason;
use kvik_memory::{
    deletions::Owner,
    shared::{SharedError, SharedRecord, SharedRecords},
};
use serde_json::{Value, json};

use super::{
    Server, config, json_of,
    kept::{self, TENANTS},
    say,
    tenants::{ask, code, keys},
};
use crate::app::AppConfig;
use kvik_serving::settings::{model::CacheArgs, size::ByteSize};

const CHAT: &str = "/v1/chat/completions";
const ALL: &str = "/v1/conversations";

/// A store in memory, which can be down.
#[derive(Default)]
struct Store {
    records: Mutex<BTreeMap<(String, String), SharedRecord>>,
    is_down: AtomicBool,
}

impl Store {
    fn ask<T>(
        &self,
        ask: impl FnOnce(&mut BTreeMap<(String, String), SharedRecord>) -> Result<T, SharedError>,
    ) -> Result<T, SharedError> {
        if self.is_down.load(Ordering::SeqCst) {
            return Err(SharedError::Down);
        }
        ask(&mut self.records.lock().unwrap())
    }
}

impl SharedRecords for Store {
    fn get(&self, kind: &str, name: &str) -> Result<Option<SharedRecord>, SharedError> {
        self.ask(|records| Ok(records.get(&(kind.to_owned(), name.to_owned())).cloned()))
    }

    fn put(&self, kind: &str, name: &str, after: u64, bytes: Vec<u8>) -> Result<u64, SharedError> {
        let key = (kind.to_owned(), name.to_owned());
        self.ask(|records| match records.get(&key).map_or(0, |record| record.version) {
            version if version == after => {
                records.insert(key, SharedRecord { version: after + 1, bytes });
                Ok(after + 1)
            }
            version => Err(SharedError::Conflict { version }),
        })
    }

    fn delete(&self, kind: &str, name: &str) -> Result<(), SharedError> {
        self.ask(|records| {
            records.remove(&(kind.to_owned(), name.to_owned()));
            Ok(())
        })
    }

    fn list(&self, kind: &str) -> Result<Vec<String>, SharedError> {
        let of_kind = |records: &BTreeMap<(String, String), SharedRecord>| {
            records.keys().filter(|(of, _)| of == kind).map(|(_, name)| name.clone()).collect()
        };
        self.ask(|records| Ok(of_kind(records)))
    }
}

/// Creates a server of a fleet with this store.
fn node(store: &Arc<Store>) -> Server {
    let script = |request: &kvik_engine::api::Request| Ok(say(request, "Hi!", FinishReason::Eos));
    Server::build(script, keys(TENANTS), AppConfig { shared_records: Some(store.clone()), ..config() })
}

async fn send(server: &Server, method: &str, path: &str, body: Value) -> (StatusCode, Value) {
    json_of(ask(server, "acme", method, path, body).await).await
}

async fn chat(server: &Server, reference: &str, text: &str) -> (StatusCode, Value) {
    let messages = json!([{"role": "user", "content": text}]);
    send(server, "POST", CHAT, json!({"messages": messages, "kvik": {"conversation": reference}})).await
}

/// The deletion of a fork found none of the blocks that were computed for its messages.
#[tokio::test]
async fn what_is_noted_of_a_conversation_is_noted_of_its_fork() {
    let store: Arc<Store> = Arc::default();
    let (one, two) = (node(&store), node(&store));
    chat(&one, "trip", "1").await;
    chat(&two, "trip", "2").await;
    store.is_down.store(true, Ordering::SeqCst);
    assert_eq!(chat(&one, "trip", "Apart.").await.0, 200);
    let prompt = one.asked().prompt;
    store.is_down.store(false, Ordering::SeqCst);
    let fork = async {
        loop {
            send(&one, "GET", &format!("{ALL}/trip"), Value::Null).await;
            let (_, listed) = send(&one, "GET", ALL, Value::Null).await;
            let name = |one: &&Value| one["name"].as_str().unwrap_or_default().contains("(conflict");
            if let Some(fork) = listed["data"].as_array().and_then(|all| all.iter().find(name)) {
                return fork["id"].as_str().unwrap().to_owned();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let fork = tokio::time::timeout(Duration::from_secs(60), fork).await.expect("it is forked");
    let (log, fork) = (&one.app.server.prompt_log, Owner::new("acme", fork));
    let noted = log.of(&fork).unwrap().map(Result::unwrap).find(|noted| noted.prompts.contains(&prompt));
    let noted = noted.expect("it has the notes");
    assert!(
        !log.others(&fork, &noted).unwrap().contains(&prompt),
        "and its deletion finds that it has them alone"
    );
}

/// As of one that was killed while it used the conversation.
#[tokio::test]
async fn after_a_deletion_the_lists_of_nodes_that_have_ended_are_gone() {
    let store: Arc<Store> = Arc::default();
    let server = node(&store);
    let ended = "0123-1700000000-1";
    store.put("hot-prompts", ended, 0, Vec::new()).unwrap();
    chat(&server, "trip", "I am in Oslo.").await;
    let (_, deleted) = send(&server, "DELETE", &format!("{ALL}/trip"), Value::Null).await;
    assert_eq!(deleted["deleted"], json!(true), "{deleted}");
    assert_eq!(store.list("hot-prompts").unwrap(), [ended], "its node may still renew it");
    let lists = server.app.server.hot_lists.as_ref().unwrap();
    lists.sweep(Instant::now() + Duration::from_secs(5 * 60));
    assert_eq!(store.list("hot-prompts").unwrap(), [""; 0]);
}

/// A list names the tokens of kept prompts as well.
#[tokio::test]
async fn after_the_deletion_of_a_kept_prompt_the_lists_are_gone_too() {
    let store: Arc<Store> = Arc::default();
    let config = AppConfig { shared_records: Some(store.clone()), ..config() };
    let server = kept::Server::configured("", CacheArgs::in_ram(512, ByteSize(8 << 20)), config);
    store.put("hot-prompts", "0123-1700000000-1", 0, Vec::new()).unwrap();
    server.done("", "PUT", "/v1/prompts/x", json!({"prompt": kept::tokens(1, 100)})).await;
    let deleted = server.done("", "DELETE", "/v1/prompts/x", Value::Null).await;
    assert_eq!(deleted["deleted"], json!(true), "{deleted}");
    let lists = server.app.server.hot_lists.as_ref().unwrap();
    lists.sweep(Instant::now());
    lists.sweep(Instant::now() + Duration::from_secs(5 * 60));
    assert_eq!(store.list("hot-prompts").unwrap(), [""; 0]);
}

#[tokio::test]
async fn a_turn_at_another_server_goes_on() {
    let store = Arc::default();
    let (one, two) = (node(&store), node(&store));
    let (_, first) = chat(&one, "trip", "I am in Oslo.").await;
    let (status, second) = chat(&two, "trip", "Where am I?").await;
    let (first, second) = (&first["kvik"]["conversation"], &second["kvik"]["conversation"]);
    assert_eq!((status.as_u16(), &second["id"], &second["messages"]), (200, &first["id"], &json!(4)));
    let prompt = two.app.serving.texts.tokenizer.decode(&two.asked().prompt);
    assert!(prompt.contains("I am in Oslo."), "{prompt}");
    for server in [&one, &two] {
        let (_, shown) = send(server, "GET", &format!("{ALL}/trip"), Value::Null).await;
        assert_eq!(shown["messages"].as_array().map(Vec::len), Some(4), "{shown}");
        let (_, found) = send(server, "GET", &format!("{ALL}?search=oslo"), Value::Null).await;
        assert_eq!(found["data"][0]["found"]["message"], 0, "{found}");
    }
}

#[tokio::test]
async fn what_another_server_has_is_busy_or_elsewhere() {
    let store: Arc<Store> = Arc::default();
    let (one, two) = (node(&store), node(&store));
    chat(&one, "trip", "1").await;
    let held = one.app.server.conversations.hold("acme", "trip").unwrap();
    let (status, answer) = chat(&two, "trip", "2").await;
    assert_eq!((status.as_u16(), code(&answer)), (409, "conversation_busy"), "{answer}");
    drop(held);
    store.is_down.store(true, Ordering::SeqCst);
    assert_eq!(chat(&one, "trip", "2").await.0, 200);
    let (status, answer) = chat(&two, "unknown", "2").await;
    assert_eq!((status.as_u16(), code(&answer)), (503, "conversation_elsewhere"), "{answer}");
}
