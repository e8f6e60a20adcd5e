//! Background work after answers, over a scripted engine: its admission turn, its memory, and that nothing
//! remains of a deleted conversation.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use kvik_cache::TenantId;
use kvik_engine::api::{Event, FinishReason, Request};
use kvik_memory::{
    memory::{Host, MemoryConfig, make_summaries},
    records::Records,
};
use serde_json::{Value, json};

use super::{Server, config, json_of, say, tenants::ask};
use crate::{
    app::{AppConfig, keys::Keys},
    http::readers::Reader,
};
use kvik_serving::settings::size::ByteSize;

const CHAT: &str = "/v1/chat/completions";
const ALL: &str = "/v1/conversations";

/// No background request is held back.
const NONE: usize = usize::MAX;

/// A summary of the small talk in these tests.
pub(super) const SUMMARY: &str = "The bus was late; noodles for lunch.";

/// The answer to a request, and to one for a summary.
pub(super) fn answer(request: &Request) -> &'static str {
    if request.background.is_some() && request.max_tokens > 0 { SUMMARY } else { "Hi!" }
}

/// Bounds by which a summary is due after few turns.
fn bounds() -> MemoryConfig {
    MemoryConfig {
        on: true,
        recent_max: Some(300),
        summary_max: Some(64),
        trigger_discard: Some(120),
        quotes_max: Some(0),
        ..MemoryConfig::default()
    }
}

/// A server whose engine answers everything except the background request number `held`, counted from 0.
pub(super) struct Held {
    pub(super) server: Server,
    held: Arc<AtomicUsize>,
}

impl Held {
    pub(super) fn new(held: usize, more: AppConfig) -> Held {
        let (held, asked) = (Arc::new(AtomicUsize::new(held)), AtomicUsize::new(0));
        let holds = held.clone();
        let script = move |request: &Request| {
            let number = request.background.is_some().then(|| asked.fetch_add(1, Ordering::SeqCst));
            if number == Some(holds.load(Ordering::SeqCst)) {
                return Ok(vec![Event::Prefill { cached: 0, done: 0, total: 1 }]);
            }
            Ok(say(request, answer(request), FinishReason::Eos))
        };
        let config = AppConfig { memory: bounds(), ..more };
        Held { server: Server::build(script, Keys::new([]), config), held }
    }

    pub(super) async fn done(&self, method: &str, path: &str, body: Value) -> Value {
        let (status, answer) = json_of(ask(&self.server, "", method, path, body).await).await;
        assert_eq!(status, 200, "{method} {path}: {answer}");
        answer
    }

    /// Sends small talk in the conversation `trip` until a summary is due; returns all messages.
    pub(super) async fn talks(&self) -> Value {
        for number in 0..200 {
            let text = format!("The bus number {number} was late again. I had noodles for lunch.");
            let turn = json!({
                "messages": [{"role": "user", "content": text}],
                "kvik": {"conversation": "trip"},
            });
            if self.done("POST", CHAT, turn).await["kvik"]["memory"]["rebuilding"] == true {
                return self.done("GET", &format!("{ALL}/trip"), Value::Null).await["messages"].take();
            }
        }
        panic!("no summary is due after two hundred turns")
    }

    /// Returns the number of background requests to the engine.
    pub(super) fn asked(&self) -> usize {
        self.server.engine.asked.lock().unwrap().iter().filter(|request| request.background.is_some()).count()
    }

    pub(super) async fn until(&self, what: &str, is_so: impl FnMut() -> bool) {
        until(what, is_so).await;
    }

    pub(super) async fn rests(&self) {
        at_rest(&self.server).await;
    }
}

/// Waits until no work after answers is left.
pub(super) async fn at_rest(server: &Server) {
    until("the end", || server.app.memory.pending.count() == 0).await;
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what} does not happen");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn nothing_is_kept_of_a_conversation_that_is_deleted_while_it_is_summarised() {
    // Before it begins, while the model is asked, while the next prompt is computed, and when all has ended.
    for (phase, held, asked) in [("queued", NONE, 0), ("asked", 0, 1), ("ahead", 1, 2), ("ended", NONE, 2)] {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path(), Duration::ZERO).unwrap();
        let world = Held::new(held, AppConfig { records: Some(records.clone()), ..config() });
        let said = world.talks().await;
        let begin = || tokio::spawn(make_summaries(world.server.app.clone()));
        if phase != "queued" {
            begin();
        }
        world.until(phase, || world.asked() >= asked).await;
        if phase == "ended" {
            world.rests().await;
        }
        world.done("DELETE", &format!("{ALL}/trip"), Value::Null).await;
        let before = world.asked();
        if phase == "queued" {
            begin();
        }
        world.rests().await;
        assert!(
            world.server.engine.open.lock().unwrap().iter().all(|sink| sink.is_closed()),
            "{phase}: the engine goes on with it"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(world.asked(), before, "{phase}: the deleted text is computed");
        let kept = records.table::<Value>("summaries").all_from("").unwrap().records;
        assert!(kept.is_empty(), "{phase}: on the disk: {kept:?}");

        world.held.store(NONE, Ordering::SeqCst);
        world.done("POST", ALL, json!({"name": "again", "messages": said})).await;
        let memory = world.done("GET", &format!("{ALL}/again/memory"), Value::Null).await;
        assert_eq!(memory["summary"], Value::Null, "{phase}");
    }
}

/// Its summary was begun after the deletion, and covered what was deleted.
#[tokio::test]
async fn nothing_is_kept_of_an_answer_that_continues_a_response_deleted_meanwhile() {
    let pauses = Arc::new(AtomicBool::new(false));
    let paused = pauses.clone();
    let script = move |request: &Request| {
        let mut events = say(request, "Hi!", FinishReason::Eos);
        if paused.load(Ordering::SeqCst) {
            events.truncate(1);
        }
        Ok(events)
    };
    let server = Server::build(script, Keys::new([]), AppConfig { memory: bounds(), ..config() });
    tokio::spawn(make_summaries(server.app.clone()));
    let text = "The bus was late again. I had noodles for lunch.";
    let said = ["user", "assistant"].map(|role| json!({"role": role, "content": text}));
    let input: Vec<&Value> = said.iter().cycle().take(41).collect();
    let (_, first) = server.post("/v1/responses", json!({"input": input, "kvik": {"memory": false}})).await;
    let id = first["id"].as_str().unwrap_or_else(|| panic!("{first}"));
    pauses.store(true, Ordering::SeqCst);
    let next = server.post("/v1/responses", json!({"input": "And?", "previous_response_id": id}));
    let meanwhile = async {
        until("the second answer", || server.engine.open.lock().unwrap().len() == 2).await;
        assert!(server.app.memory.history_bytes() > 0, "a summary is due");
        let deleted = server.send("DELETE", &format!("/v1/responses/{id}"), "").await;
        assert_eq!(json_of(deleted).await.1["deleted"], true);
        pauses.store(false, Ordering::SeqCst);
        let rest = say(&server.asked(), "Hi!", FinishReason::Eos).split_off(1);
        let mut open = server.engine.open.lock().unwrap();
        for event in rest {
            open[1].send(event);
        }
    };
    let ((status, answer), ()) = tokio::join!(next, meanwhile);
    assert_eq!((status.as_u16(), &answer["status"]), (200, &json!("completed")), "{answer}");
    let path = format!("/v1/responses/{}", answer["id"].as_str().unwrap());
    assert_eq!(server.send("GET", &path, "").await.status(), 404, "it is stored behind what is gone");
    at_rest(&server).await;
    assert_eq!(server.engine.asked.lock().unwrap().len(), 2, "what was deleted is summarised");
    assert_eq!(server.app.server.deletions.all().len(), 1, "nobody deletes what was computed for both");
}

/// A summary that pins left no room for was kept as a whole one.
#[tokio::test]
async fn a_text_without_room_for_its_end_is_told_to_be_cut() {
    for (reason, is_cut) in [(FinishReason::Eos, false), (FinishReason::Length, true)] {
        let server = Server::new(move |request| Ok(say(request, "Lunch was", reason)));
        let caller = server.app.keys().caller(&HeaderMap::new()).unwrap();
        for is_waited_for in [false, true] {
            let spoken =
                server.app.said(&caller, Request::new(vec![1; 20], 64), is_waited_for).await.unwrap();
            assert_eq!((spoken.text.as_str(), spoken.is_cut), ("Lunch was", is_cut));
        }
    }
}

#[tokio::test]
async fn what_is_read_for_a_summary_waits_until_no_request_is_read() {
    let world = Held::new(NONE, config());
    world.talks().await;
    let readers = world.server.app.server.readers.clone();
    let reader = Reader { tenant: TenantId(0), large: false };
    let permits = [readers.enter(reader).await.unwrap(), readers.enter(reader).await.unwrap()];
    tokio::spawn(make_summaries(world.server.app.clone()));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(world.asked(), 0, "it was read beside two requests");
    drop(permits);
    world.until("the summary", || world.asked() >= 2).await;
}

/// Sixty turns of half a megabyte each wait for the engine.
#[tokio::test]
async fn turns_that_wait_hold_no_more_of_their_histories_than_there_is_room_for() {
    const TURNS: usize = 60;
    let limit = 1 << 20;
    let waits = |_: &Request| Ok(vec![Event::Prefill { cached: 0, done: 0, total: 1 }]);
    let memory = MemoryConfig { on: true, ..MemoryConfig::default() };
    let config = AppConfig { memory, body_limit: ByteSize(limit), ..config() };
    let server = Arc::new(Server::build(waits, Keys::new([]), config));
    let mut clients = tokio::task::JoinSet::new();
    for turn in 0..TURNS {
        let server = server.clone();
        clients.spawn(async move {
            let long = |part: usize| format!("{turn} {part} {}", "late again ".repeat(9000));
            let roles = ["user", "assistant"];
            let said = (0..5).map(|part| json!({"role": roles[part % 2], "content": long(part)}));
            let mut messages: Vec<Value> = said.collect();
            messages.extend([json!({"role": "assistant", "content": "Oh."})]);
            messages.extend([json!({"role": "user", "content": "Hello."})]);
            ask(&server, "", "POST", CHAT, json!({"messages": messages})).await;
        });
    }
    let start = Instant::now();
    loop {
        let asked = server.engine.asked.lock().unwrap().len();
        if asked == TURNS {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(300), "{asked} of {TURNS} turns reach the engine");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let held = server.app.memory.history_bytes();
    assert!(held > limit, "summaries are due: {held}");
    assert!(held <= 4 * limit, "{held} bytes of histories are held");
    drop(clients);
    let start = Instant::now();
    while server.app.memory.history_bytes() > 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "clients that leave give room back");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
