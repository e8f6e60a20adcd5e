//! Requests do not wait for external delays: hanging files, and clients that do not read.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::http::{HeaderMap, header};
use kvik_engine::api::{Event, FinishReason, Request};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::timeout};

use super::{
    Server, config,
    kept::{self, tokens},
    report, say,
    tenants::{ask, keys},
    with,
};
use crate::{
    accounts::ledger::hanging::Gate,
    app::{AppConfig, kept_answer::KeptAnswer, keys::Keys, responses::ResponseTurn},
    http::body_memory::SMALL_BYTES,
};
use kvik_serving::settings::{model::CacheArgs, size::ByteSize};

/// Requests of one kind that encounter a hanging file.
const REQUESTS: usize = 100;
/// Fewer threads than requests.
const POOL_THREADS: usize = 90;
/// Size of the long records in bytes, beyond what the store keeps in memory.
const LONG: usize = 3 << 19;
/// Longer than any answer takes; a hanging file hangs forever.
const SOON: Duration = Duration::from_secs(60);

/// Returns the request with this number, of one kind.
type Ask = Box<dyn Fn(usize) -> (&'static str, String, Value)>;

/// Opens the gate even if the test fails: blocked threads would keep the test from ending.
pub(super) struct AtLast(pub(super) Gate);

impl Drop for AtLast {
    fn drop(&mut self) {
        self.0.open();
    }
}

fn said(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

/// Returns the kinds of requests that access a file, with their names. The conversation `long` and the
/// response are larger than what the records keep in memory.
fn kinds(response: String) -> Vec<(&'static str, Ask)> {
    let chat = |i: usize| json!({"messages": said("Hi"), "max_tokens": 1, "kvik": {"conversation": format!("c{i}")}});
    let answer = |i: usize| json!({"input": format!("Hi {i}"), "max_output_tokens": 1});
    let get = |path: String| -> Ask { Box::new(move |_| ("GET", path.clone(), Value::Null)) };
    vec![
        ("usage", get("/v1/usage".to_owned())),
        ("conversation", get("/v1/conversations/long".to_owned())),
        ("export", get("/v1/conversations/long/export?format=markdown".to_owned())),
        ("search", get("/v1/conversations?search=nowhere".to_owned())),
        ("memory", get("/v1/conversations/long/memory".to_owned())),
        ("response", get(format!("/v1/responses/{response}"))),
        ("items", get(format!("/v1/responses/{response}/input_items"))),
        ("begin", Box::new(|_| ("POST", "/v1/conversations".to_owned(), json!({"messages": said("Hi")})))),
        ("branch", Box::new(|_| ("POST", "/v1/conversations".to_owned(), json!({"from": "long"})))),
        ("turn", Box::new(move |i| ("POST", "/v1/chat/completions".to_owned(), chat(i)))),
        ("store", Box::new(move |i| ("POST", "/v1/responses".to_owned(), answer(i)))),
        (
            "prompt",
            Box::new(|i| ("PUT", format!("/v1/prompts/p{i}"), json!({"prompt": tokens(i as u32, 20)}))),
        ),
        ("release", Box::new(|_| ("DELETE", "/v1/prompts/kept".to_owned(), Value::Null))),
        ("forget", Box::new(move |_| ("DELETE", format!("/v1/responses/{response}"), Value::Null))),
        ("delete", Box::new(|_| ("DELETE", "/v1/conversations/long".to_owned(), Value::Null))),
    ]
}

/// Creates a server whose records are all behind a gate, with an entry in each of them.
async fn server(gate: &Gate) -> (Arc<kept::Server>, String) {
    let (records, conversations) = (Some(gate.records()), Some(gate.records()));
    let config = AppConfig { body_limit: ByteSize(64 << 20), records, conversations, ..config() };
    let cache = CacheArgs::in_ram(512, ByteSize(8 << 20));
    let server = Arc::new(kept::Server::configured("", cache, config));
    let long = json!({"name": "long", "messages": said(&"x".repeat(LONG))});
    server.done("", "POST", "/v1/conversations", long).await;
    let id = "resp_long".to_owned();
    let asked = json!({"input": "Hello.", "max_output_tokens": 1, "store": false});
    let mut answer = server.done("", "POST", "/v1/responses", asked).await;
    answer["id"] = json!(id);
    stored(&server.app.server.responses, &id, LONG, answer);
    server.done("", "PUT", "/v1/prompts/kept", json!({"prompt": tokens(999, 20)})).await;
    (server, id)
}

/// Stores an answer to an input of this size.
fn stored(store: &Arc<crate::app::responses::Responses>, id: &str, bytes: usize, answer: Value) {
    let turn = ResponseTurn {
        store: store.clone(),
        tenant: crate::accounts::tenants::DEFAULT_NAME.to_owned(),
        id: id.to_owned(),
        previous: None,
        input: vec![json!({"id": "item", "text": "x".repeat(bytes)})],
        new: Vec::new(),
    };
    turn.write(json!({}), answer).unwrap();
}

/// Checks that requests without file access are answered.
async fn goes_on(server: &kept::Server, name: &str) {
    let chat = json!({"messages": said("Hello."), "max_tokens": 2});
    for (method, path, body) in [
        ("POST", "/v1/chat/completions", chat),
        ("GET", "/health", Value::Null),
        ("GET", "/v1/conversations", Value::Null),
        ("GET", "/v1/prompts", Value::Null),
        ("GET", "/v1/prompts/kept", Value::Null),
        ("POST", "/tokenize", json!({"content": "Hello."})),
    ] {
        let answered = async {
            loop {
                let answered = server.send("", method, path, body.clone()).await;
                // The queue may be full of requests whose answers must be recorded.
                if answered.0 != 429 {
                    return answered;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let (status, answer) =
            timeout(SOON, answered).await.unwrap_or_else(|_| panic!("{name}: {method} {path} stands"));
        let is_gone = path.ends_with("kept") && status == 404;
        assert!(status == 200 || is_gone, "{name}: {method} {path}: {answer}");
    }
}

#[test]
fn answers_go_on_while_each_file_hangs() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(1).max_blocking_threads(POOL_THREADS).enable_all();
    runtime.build().unwrap().block_on(async {
        let gate = Gate::default();
        let _opened = AtLast(gate.clone());
        let (server, response) = server(&gate).await;
        for (name, ask) in kinds(response) {
            goes_on(&server, name).await;
            gate.shut();
            let ledger = server.app.server.ledger.clone();
            // The usage accounts are written every few seconds.
            let write = move || if name == "usage" { ledger.write() } else { Ok(()) };
            let written = tokio::task::spawn_blocking(write);
            let mut asked = JoinSet::new();
            for (method, path, body) in (0..REQUESTS).map(&ask) {
                let server = server.clone();
                asked.spawn(async move { server.send_text_of("", method, &path, body).await });
            }
            let hangs = async {
                while gate.waiting() == 0 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            timeout(SOON, hangs).await.expect(name);
            goes_on(&server, name).await;
            gate.open();
            let mut refused = 0;
            while let Some(answered) = timeout(SOON, asked.join_next()).await.expect(name) {
                let (status, text) = answered.unwrap();
                refused += usize::from(status == 503);
                assert!(status != 503 || text.contains("storage_unavailable"), "{name}: {text}");
                assert!(![500, 400].contains(&status.as_u16()), "{name}: {status} {text}");
            }
            assert!(refused < REQUESTS, "{name}: the file answers again");
            let _ = timeout(SOON, written).await.expect(name).unwrap();
        }
        let usage = server.done("", "GET", "/v1/usage", Value::Null).await;
        assert!(usage["data"][0]["requests"].as_u64().unwrap() > 0, "nothing was lost: {usage}");
    });
}

/// The engine explains between two steps, and a step may take seconds.
#[tokio::test]
async fn others_are_read_while_an_explanation_waits_for_a_step() {
    let pair = "[tenant.acme]\nKEY:acme;\n[tenant.beta]\nKEY:beta;\n";
    let script = |request: &Request| Ok(say(request, "Hi!", FinishReason::Eos));
    let server = Server::build(script, keys(pair), config());
    let step = server.engine.step.clone();
    let _opened = AtLast(step.clone());
    let small = json!({"messages": said("Hello."), "max_tokens": 1});
    let large = with(small.clone(), json!({"unknown": "x".repeat(256 << 10)}));
    step.shut();
    let explained = ask(&server, "acme", "POST", "/v1/cache/explain", large.clone());
    let others = async {
        while step.waiting() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for (key, body) in [("acme", small), ("beta", large.clone())] {
            let answered = timeout(SOON, ask(&server, key, "POST", "/v1/chat/completions", body)).await;
            assert_eq!(answered.expect(key).status(), 200, "{key}");
        }
        step.open();
    };
    let (explained, ()) = tokio::join!(explained, others);
    assert_eq!(explained.status(), 200);
}

/// Requests whose answers are longer than their bodies, or as long, each with a length that its answer exceeds.
fn conversions(server: &Server, length: usize) -> [(&'static str, &'static str, Value, usize); 4] {
    let tokenizer = &server.app.serving.texts.tokenizer;
    let long = tokenizer.token_of("Ġnotifications").unwrap();
    let tokens = vec![long; 1 + length / tokenizer.token_bytes(long).len()];
    // Its piece and id take twenty bytes, and the escape of this character takes six.
    let pieces = json!({"content": "x".repeat(length / 20), "with_pieces": true});
    let escaped = json!({"messages": said(&"\u{1}".repeat(60_000))});
    let prompts = json!({"prompt": vec![vec![long; 1500]; 60]});
    [
        ("POST", "/tokenize", pieces, length),
        ("POST", "/detokenize", json!({"tokens": tokens}), length),
        ("POST", "/apply-template", escaped, 6 * 60_000),
        ("POST", "/v1/completions/render", prompts, 4 * 1500 * 60),
    ]
}

/// Sends a request many times and reads no answer: those that come are within the memory for answers, and another one
/// comes when one of them was read.
async fn check_unread(server: &Server, method: &str, path: &str, body: Value, length: usize) {
    let body = body.to_string();
    let (mut unread, mut bytes) = (Vec::new(), 0);
    for _ in 0..40 {
        let response = server.send(method, path, body.clone()).await;
        if response.status() == 200 {
            bytes += axum::body::HttpBody::size_hint(response.body()).lower();
            unread.push(response);
            continue;
        }
        assert_eq!(response.status(), 429, "{path}");
        assert_eq!(response.headers()[header::RETRY_AFTER], "1", "{path}");
    }
    let held = 2 * server.app.server.body_limit.0 + unread.len() as u64 * SMALL_BYTES;
    assert!(!unread.is_empty() && bytes <= held, "{path}: {bytes} bytes are held");
    drop(unread.pop());
    let response = server.send(method, path, body).await;
    assert_eq!(response.status(), 200, "{path}: one was read");
    let read = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    assert!(read.len() > length, "{path}");
}

#[tokio::test]
async fn clients_that_do_not_read_hold_no_more_than_the_memory_for_answers() {
    const LONG: usize = 900 << 10;
    let limit = ByteSize(1 << 20);
    let script = |request: &Request| Ok(say(request, "Hi!", FinishReason::Eos));
    let server = Server::build(script, Keys::new([]), AppConfig { body_limit: limit, ..config() });
    let (status, answer) =
        server.post("/v1/conversations", json!({"name": "long", "messages": said(&"x".repeat(LONG))})).await;
    assert_eq!(status, 200, "{answer}");
    stored(&server.app.server.responses, "resp_long", LONG, json!({}));
    let get = |path: &'static str| ("GET", path, Value::Null, LONG);
    for (method, path, body, length) in [
        get("/v1/conversations/long"),
        get("/v1/conversations/long/export"),
        get("/v1/conversations/long/export?format=markdown"),
        get("/v1/responses/resp_long/input_items"),
    ]
    .into_iter()
    .chain(conversions(&server, LONG))
    {
        check_unread(&server, method, path, body, length).await;
    }
    // Added items are sent back: where there is no memory for that, nothing is added.
    let (mut unread, items) = (Vec::new(), json!({"items": said(&"x".repeat(LONG))}).to_string());
    for _ in 0..5 {
        let response = server.send("POST", "/v1/conversations/long/items", items.clone()).await;
        match response.status().as_u16() {
            200 => unread.push(response),
            status => assert_eq!(status, 429),
        }
    }
    assert!((1..5).contains(&unread.len()), "{} answers", unread.len());
    let (_, listed) = server.get("/v1/conversations").await;
    assert_eq!(listed["data"][0]["messages"], 1 + unread.len());
}

/// Metadata of some conversations without a message is as long as a body.
#[tokio::test]
async fn lists_that_clients_do_not_read_hold_no_more_than_that() {
    const CONVERSATIONS: usize = 30;
    let server = Server::new(|request| Ok(say(request, "Hi!", FinishReason::Eos)));
    let name = |index: usize| format!("{index:02}{}", "😀".repeat(62));
    let metadata: BTreeMap<String, String> = (0..16).map(|index| (name(index), "😀".repeat(512))).collect();
    let length = CONVERSATIONS * metadata.iter().map(|(name, text)| name.len() + text.len()).sum::<usize>();
    for index in 0..CONVERSATIONS {
        let body = json!({"name": format!("trip {index}"), "metadata": metadata});
        let (status, answer) = server.post("/v1/conversations", body).await;
        assert_eq!(status, 200, "{answer}");
    }
    for path in ["/v1/conversations?limit=1000", "/v1/conversations?limit=1000&search=trip"] {
        check_unread(&server, "GET", path, Value::Null, length).await;
    }
}

/// The text of an answer may be longer than its record: it says also which question is being answered.
#[tokio::test]
async fn an_answer_counts_for_its_own_length() {
    let server = Server::saying("Hi!");
    let caller = server.app.keys().caller(&HeaderMap::new()).unwrap();
    let mut unread = Vec::new();
    for _ in 0..40 {
        let text = KeptAnswer::Written(vec![b' '; 900 << 10]);
        unread.extend(server.app.server.answer_kept(&caller, 0, |_| Ok(text)).await);
    }
    assert_eq!(unread.len(), 2, "as many as twice the largest body holds");
}

/// Room is reserved before the vectors are computed: what has none costs nothing.
#[tokio::test]
async fn vectors_that_clients_do_not_read_have_a_bound() {
    const TEXTS: usize = 1000;
    let texts = json!(vec!["x"; TEXTS]);
    for (path, field) in [("/v1/embeddings", "input"), ("/embedding", "content"), ("/api/embed", "input")] {
        let script = |request: &Request| {
            let finished = Event::Finished { choice: 0, reason: FinishReason::Length };
            Ok(vec![Event::Vector(vec![0.1, 0.2, 0.3, 0.4]), finished, Event::Done(report(request, 0))])
        };
        let config = AppConfig { body_limit: ByteSize(128 << 10), ..config() };
        let server = Server::build(script, Keys::new([]), config);
        let body = json!({field: texts}).to_string();
        let (mut unread, mut refused) = (Vec::new(), None);
        for _ in 0..40 {
            let response = server.send("POST", path, body.clone()).await;
            match response.status().as_u16() {
                200 => unread.push(response),
                _ => refused = Some(response),
            }
        }
        let refused = refused.unwrap_or_else(|| panic!("{path}: all 40 are held"));
        assert_eq!(refused.status(), 429, "{path}");
        assert_eq!(refused.headers()[header::RETRY_AFTER], "1", "{path}");
        let computed = server.engine.asked.lock().unwrap().len();
        assert_eq!(computed, TEXTS * unread.len(), "{path}: what was refused was not computed");
        drop(unread);
        assert_eq!(server.send("POST", path, body).await.status(), 200, "{path}: all were read");
    }
}
