//! Answers that go on without their client: followed from an event on, stopped, and by whom.

use std::time::Duration;

use axum::response::Response;
use kvik_engine::api::{FinishReason, Request};
use serde_json::{Value, json};

use super::{
    Server, config, json_of,
    kept::TENANTS,
    outside::AtLast,
    say,
    tenants::{ask, code, keys},
};
use crate::{accounts::ledger::hanging::Gate, app::AppConfig};

const CHAT: &str = "/v1/chat/completions";
const TRIP: &str = "/v1/conversations/trip";
const ANSWER: &str = "/v1/conversations/trip/answer";
/// Events that the engine sends at once; the others come when the test says so.
const FIRST: usize = 2;

/// A server whose answers are `Hi!`, and pause after the first character.
async fn server() -> Server {
    configured(config()).await
}

async fn configured(config: AppConfig) -> Server {
    let script = |request: &Request| {
        let mut events = say(request, "Hi!", FinishReason::Eos);
        events.truncate(FIRST);
        Ok(events)
    };
    let server = Server::build(script, keys(TENANTS), config);
    done(&server, "POST", "/v1/conversations", json!({"name": "trip"})).await;
    server
}

/// Sends the other events of the last answer.
fn go_on(server: &Server) {
    let rest = say(&server.asked(), "Hi!", FinishReason::Eos).split_off(FIRST);
    let mut open = server.engine.open.lock().unwrap();
    let sink = open.last_mut().unwrap();
    for event in rest {
        sink.send(event);
    }
}

fn question(fields: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Hello."}],
        "stream": true,
        "kvik": {"conversation": "trip", "resume": true},
    });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

async fn done(server: &Server, method: &str, path: &str, body: Value) -> Value {
    let (status, answer) = json_of(ask(server, "acme", method, path, body).await).await;
    assert_eq!(status, 200, "{method} {path}: {answer}");
    answer
}

/// The data of a stream's events.
async fn events(response: Response) -> Vec<String> {
    assert_eq!(response.status(), 200);
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    text.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_client_that_left_comes_back_for_the_rest() {
    let server = server().await;
    let first = ask(&server, "acme", "POST", CHAT, question(json!({}))).await;
    assert_eq!(first.status(), 200);
    drop(first);
    let shown = done(&server, "GET", TRIP, Value::Null).await;
    assert_eq!((&shown["answering"], &shown["messages"]), (&question(json!({}))["messages"], &json!([])));
    let (status, busy) = json_of(ask(&server, "acme", "POST", CHAT, question(json!({}))).await).await;
    assert_eq!((status.as_u16(), code(&busy)), (409, "conversation_busy"));

    let all = ask(&server, "acme", "GET", ANSWER, Value::Null).await;
    let some = ask(&server, "acme", "GET", &format!("{ANSWER}?from=2"), Value::Null).await;
    go_on(&server);
    let all = events(all).await;
    assert_eq!(events(some).await, all[2..], "the events from the third on");
    assert_eq!(all.last().unwrap(), "[DONE]");
    let text = |event: &String| {
        let event: Value = serde_json::from_str(event).unwrap_or_default();
        event["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(all.iter().map(text).collect::<String>(), "Hi!");
    let shown = done(&server, "GET", TRIP, Value::Null).await;
    assert_eq!((shown["messages"].as_array().unwrap().len(), shown.get("answering")), (2, None));
    assert_eq!(
        events(ask(&server, "acme", "GET", ANSWER, Value::Null).await).await,
        all,
        "for a moment longer"
    );

    done(&server, "DELETE", &format!("{TRIP}/messages?from=0"), Value::Null).await;
    let (status, gone) = json_of(ask(&server, "acme", "GET", ANSWER, Value::Null).await).await;
    assert_eq!(
        (status.as_u16(), code(&gone)),
        (404, "no_answer_runs"),
        "what was taken back is not read again"
    );
}

#[tokio::test]
async fn an_answer_is_stopped_and_nothing_of_it_is_written() {
    let server = server().await;
    let mine = ask(&server, "acme", "POST", CHAT, question(json!({}))).await;
    assert_eq!(done(&server, "DELETE", ANSWER, Value::Null).await["stopped"], true);
    assert!(server.engine.open.lock().unwrap()[0].is_closed(), "the engine is told");
    assert_ne!(events(mine).await.last().map(String::as_str), Some("[DONE]"));
    let shown = done(&server, "GET", TRIP, Value::Null).await;
    assert_eq!((&shown["messages"], shown.get("answering")), (&json!([]), None));
    assert_eq!(done(&server, "DELETE", ANSWER, Value::Null).await["stopped"], false);
    let again = ask(&server, "acme", "POST", CHAT, question(json!({}))).await;
    assert_eq!(again.status(), 200, "the conversation is free");
}

/// Its conversation exists only once it is written.
#[tokio::test]
async fn an_answer_with_which_a_conversation_begins_is_followed_and_stopped_by_the_name() {
    const ANSWER: &str = "/v1/conversations/new/answer";
    let server = server().await;
    let begins = question(json!({"kvik": {"conversation": "new", "resume": true}}));
    drop(ask(&server, "acme", "POST", CHAT, begins.clone()).await);
    for method in ["GET", "DELETE"] {
        let (status, answer) = json_of(ask(&server, "beta", method, ANSWER, Value::Null).await).await;
        assert_eq!((status.as_u16(), code(&answer)), (404, "conversation_not_found"), "{method}");
    }
    assert_eq!(ask(&server, "acme", "GET", ANSWER, Value::Null).await.status(), 200);
    assert_eq!(done(&server, "DELETE", ANSWER, Value::Null).await["stopped"], true);
    drop(ask(&server, "acme", "POST", CHAT, begins).await);
    let all = ask(&server, "acme", "GET", ANSWER, Value::Null).await;
    go_on(&server);
    assert_eq!(events(all).await.last().map(String::as_str), Some("[DONE]"));
    let shown = done(&server, "GET", "/v1/conversations/new", Value::Null).await;
    assert_eq!(shown["messages"].as_array().map(Vec::len), Some(2), "{shown}");
}

#[tokio::test]
async fn an_answer_that_is_being_written_is_kept_and_not_said_to_be_stopped() {
    let gate = Gate::default();
    let server = configured(AppConfig { conversations: Some(gate.records()), ..config() }).await;
    let mine = ask(&server, "acme", "POST", CHAT, question(json!({}))).await;
    let _opened = AtLast(gate.clone());
    gate.shut();
    go_on(&server);
    while gate.waiting() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (stopped, ()) =
        tokio::join!(biased; done(&server, "DELETE", ANSWER, Value::Null), async { gate.open() });
    assert_eq!(stopped["stopped"], false);
    assert_eq!(events(mine).await.last().map(String::as_str), Some("[DONE]"));
    let shown = done(&server, "GET", TRIP, Value::Null).await;
    assert_eq!((shown["messages"].as_array().unwrap().len(), shown.get("answering")), (2, None));
    let again = ask(&server, "acme", "POST", CHAT, question(json!({}))).await;
    assert_eq!(again.status(), 200, "the conversation is free");
}

#[tokio::test]
async fn nobody_else_follows_or_stops_it() {
    let server = server().await;
    drop(ask(&server, "acme", "POST", CHAT, question(json!({}))).await);
    for method in ["GET", "DELETE"] {
        let (status, answer) = json_of(ask(&server, "beta", method, ANSWER, Value::Null).await).await;
        assert_eq!((status.as_u16(), code(&answer)), (404, "conversation_not_found"), "{method}");
    }
    assert!(done(&server, "GET", TRIP, Value::Null).await["answering"].is_array());
}

#[tokio::test]
async fn only_a_stream_of_a_conversation_goes_on() {
    let server = server().await;
    for body in [question(json!({"stream": false})), question(json!({"kvik": {"resume": true}}))] {
        let (status, answer) = json_of(ask(&server, "acme", "POST", CHAT, body).await).await;
        assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!("kvik.resume")));
    }
    let body = json!({"input": "Hello.", "stream": true, "kvik": {"conversation": "trip", "resume": true}});
    let (status, answer) = json_of(ask(&server, "acme", "POST", "/v1/responses", body).await).await;
    assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!("kvik.resume")));
}
