//! The routes with tenants: identification, visibility, limits, and billing.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{body::to_bytes, http::StatusCode, response::Response};
use kvik_engine::api::{Event, FinishReason, Request, RequestError};
use serde_json::{Value, json};
use tokio_stream::StreamExt;

use super::{Server, config, hello, json_of, report, say, with};
use crate::{
    accounts::tenants::{KeyDigest, Secret, Source, Tenants},
    app::AppConfig,
    app::keys::Keys,
    clock::Clock,
};

/// Reads tenants from a file with this text; `KEY:name` stands for the digest of `name`.
fn tenants(text: &str, before: &Tenants) -> Tenants {
    let dir = tempfile::tempdir().unwrap();
    tenants_file(dir.path(), text).read(before).unwrap()
}

/// Writes a file with this text, in a directory with the server's secret.
pub(super) fn tenants_file(dir: &Path, text: &str) -> Source {
    let path = dir.join("tenants.toml");
    let words = text.split("KEY:").enumerate().map(|(i, piece)| match i {
        0 => piece.to_owned(),
        _ => {
            let (name, rest) = piece.split_once(';').unwrap();
            format!("keys = [\"{}\"]{rest}", KeyDigest::of(name))
        }
    });
    std::fs::write(&path, words.collect::<String>()).unwrap();
    Source { path, secret: Secret::open(&dir.join("secret")).unwrap() }
}

const PAIR: &str = "[tenant.acme]\nKEY:acme;\n[tenant.beta]\nKEY:beta;\n";

pub(crate) fn keys(text: &str) -> Keys {
    let admin = Keys::new([]).with_admin(Some("root")).unwrap();
    admin.with_tenants(tenants(text, &Tenants::none())).unwrap()
}

fn server(text: &str) -> Server {
    Server::build(|request| Ok(say(request, "Hi!", FinishReason::Eos)), keys(text), config())
}

/// Creates a server that never finishes a request.
pub(crate) fn busy_server(text: &str) -> Server {
    Server::build(
        |request| Ok(vec![Event::Prefill { cached: 0, done: 0, total: request.prompt.len() }]),
        keys(text),
        config(),
    )
}

pub(crate) async fn ask(server: &Server, key: &str, method: &str, path: &str, body: Value) -> Response {
    let bearer = format!("Bearer {key}");
    let body = if body.is_null() { String::new() } else { body.to_string() };
    server.send_with(method, path, body, &[("authorization", &bearer)]).await
}

async fn post(server: &Server, key: &str, path: &str, body: Value) -> (StatusCode, Value) {
    json_of(ask(server, key, "POST", path, body).await).await
}

async fn get(server: &Server, key: &str, path: &str) -> (StatusCode, Value) {
    json_of(ask(server, key, "GET", path, Value::Null).await).await
}

async fn chat(server: &Server, key: &str) -> Response {
    ask(server, key, "POST", "/v1/chat/completions", hello()).await
}

async fn status(server: &Server, key: &str) -> u16 {
    chat(server, key).await.status().as_u16()
}

pub(crate) fn code(answer: &Value) -> &str {
    answer["error"]["code"].as_str().unwrap_or_default()
}

/// A stream that runs until it is dropped.
async fn stream(server: &Server, key: &str) -> Response {
    let response =
        ask(server, key, "POST", "/v1/chat/completions", with(hello(), json!({"stream": true}))).await;
    assert_eq!(response.status(), 200);
    response
}

#[tokio::test]
async fn whose_a_request_is_comes_from_its_key_alone() {
    let server = server(PAIR);
    let asked = async |key: &str, extra: Value| {
        for (path, body) in [("/v1/chat/completions", hello()), ("/completion", json!({"prompt": "abc"}))] {
            let (status, answer) = post(&server, key, path, with(body, extra.clone())).await;
            assert_eq!(status, 200, "{answer}");
        }
        let asked = server.engine.asked.lock().unwrap();
        let [.., chat, text] = asked.as_slice() else { panic!("two requests were asked") };
        assert_eq!((chat.tenant, chat.salt), (text.tenant, text.salt));
        (chat.tenant, chat.salt)
    };
    let acme = asked("acme", json!({})).await;
    let claims = json!({
        "cache_salt": "beta", "salt": "beta", "prompt_cache_key": "beta", "user": "beta", "tenant": "beta",
    });
    assert_eq!(asked("acme", claims).await, acme);
    let own = with(hello(), json!({"kvik": {"tenant": "beta"}}));
    assert_eq!(post(&server, "acme", "/v1/chat/completions", own).await.0, 400, "kvik has no such field");
    let beta = asked("beta", json!({})).await;
    assert!(acme.0 != beta.0 && acme.1 != beta.1);
    assert!(acme.1 != [0; 16] && beta.1 != [0; 16]);
}

#[tokio::test]
async fn what_concerns_all_is_for_the_admin() {
    let server = server(PAIR);
    for key in ["acme", "beta"] {
        let (status, answer) = get(&server, key, "/metrics").await;
        assert_eq!((status.as_u16(), code(&answer)), (403, "admin_key_required"));
        assert_eq!(get(&server, key, "/v1/models").await.0, 200);
    }
    assert_eq!(ask(&server, "root", "GET", "/metrics", Value::Null).await.status(), 200);
    assert_eq!(ask(&server, "", "GET", "/metrics", Value::Null).await.status(), 401);
    let nobody = Server::build(
        |_| Err(RequestError::Stopping),
        Keys::new([]).with_tenants(tenants(PAIR, &Tenants::none())).unwrap(),
        config(),
    );
    assert_eq!(get(&nobody, "acme", "/metrics").await.0, 403, "without an admin's key nobody sees it");
}

#[tokio::test]
async fn what_all_have_stored_is_for_the_admin() {
    let server = server(PAIR);
    let (weights, used) = (server.app.serving.model.bytes, server.app.bytes_used());
    assert!(weights < used);
    for (key, shown, size) in [("acme", json!(null), weights), ("root", json!(used), used)] {
        let shelf = get(&server, key, "/v1/shelf").await.1;
        assert_eq!(shelf["models"][0]["bytes_used"], shown, "{key}");
        assert_eq!(shelf["models"][0]["held"].is_null(), key == "acme");
        assert_eq!(get(&server, key, "/api/ps").await.1["models"][0]["size"], size, "{key}");
    }
}

/// Returns days, tenants, requests and costs of `/v1/usage`.
async fn usage(server: &Server, key: &str, parameters: &str) -> Vec<(String, String, u64, String)> {
    let (status, answer) = get(server, key, &format!("/v1/usage{parameters}")).await;
    assert_eq!(status, 200, "{answer}");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let line = |line: &Value| {
        (text(&line["day"]), text(&line["tenant"]), line["requests"].as_u64().unwrap(), text(&line["cost"]))
    };
    answer["data"].as_array().unwrap().iter().map(line).collect()
}

#[tokio::test]
async fn a_tenant_sees_its_own_usage_and_the_admin_all() {
    let server = server(&PAIR.replace("KEY:beta;", "KEY:beta;\nprices = { output = 0.5 }"));
    for key in ["acme", "beta", "beta"] {
        assert_eq!(status(&server, key).await, 200);
    }
    let day = || "1970-01-01".to_owned();
    let acme = (day(), "acme".to_owned(), 1, "0".to_owned());
    let beta = (day(), "beta".to_owned(), 2, "3".to_owned());
    assert_eq!(usage(&server, "acme", "").await, std::slice::from_ref(&acme));
    assert_eq!(usage(&server, "acme", "?tenant=acme&since=1970-01-01").await, std::slice::from_ref(&acme));
    assert_eq!(usage(&server, "root", "").await, [acme, beta.clone()]);
    assert_eq!(usage(&server, "root", "?tenant=beta").await, [beta]);
    assert_eq!(usage(&server, "root", "?since=1970-01-02").await, []);
    for name in ["beta", "nobody"] {
        let (status, answer) = get(&server, "acme", &format!("/v1/usage?tenant={name}")).await;
        assert_eq!((status.as_u16(), code(&answer)), (403, "admin_key_required"), "whether it exists or not");
    }
    for wrong in ["?since=yesterday", "?until=2026-02-30", "?teannt=acme"] {
        assert_eq!(get(&server, "root", &format!("/v1/usage{wrong}")).await.0, 400, "{wrong}");
    }
}

/// A clock that a test sets.
fn clock() -> (Arc<AtomicU64>, Clock) {
    let ms = Arc::new(AtomicU64::new(0));
    let hand = ms.clone();
    (ms, Arc::new(move || Duration::from_millis(hand.load(Ordering::Relaxed))))
}

#[tokio::test]
async fn too_many_requests_are_refused_in_openais_shape() {
    let (ms, clock) = clock();
    let text = PAIR.replace("KEY:acme;", "KEY:acme;\nrequests-per-minute = 2");
    let server = Server::build(
        |request| Ok(say(request, "Hi!", FinishReason::Eos)),
        keys(&text),
        AppConfig { clock, ..config() },
    );
    let first = chat(&server, "acme").await;
    let header = |response: &Response, name: &str| response.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(header(&first, "x-ratelimit-limit-requests"), "2");
    assert_eq!(header(&first, "x-ratelimit-remaining-requests"), "1");
    assert_eq!(header(&first, "x-ratelimit-reset-requests"), "30s");
    assert!(first.headers().get("x-ratelimit-limit-tokens").is_none());
    assert_eq!(status(&server, "acme").await, 200);

    let refused = chat(&server, "acme").await;
    assert_eq!(header(&refused, "retry-after"), "30");
    assert_eq!(header(&refused, "x-ratelimit-remaining-requests"), "0");
    let (status_code, answer) = json_of(refused).await;
    assert_eq!((status_code.as_u16(), code(&answer)), (429, "rate_limit_exceeded"));
    assert_eq!(answer["error"]["type"], "rate_limit_error");
    assert_eq!(get(&server, "acme", "/v1/models").await.0, 429, "looking counts as well");
    assert_eq!(get(&server, "acme", "/health").await.0, 200, "but not at its health");
    assert_eq!(status(&server, "beta").await, 200, "others have limits of their own");

    ms.store(30_000, Ordering::Relaxed);
    assert_eq!([status(&server, "acme").await, status(&server, "acme").await], [200, 429]);
}

#[tokio::test]
async fn tokens_that_were_computed_count_and_cached_ones_do_not() {
    let (ms, clock) = clock();
    let text = PAIR.replace("KEY:acme;", "KEY:acme;\ntokens-per-minute = 60");
    let server = Server::build(
        |request| Ok(say(request, "Hi!", FinishReason::Eos)),
        keys(&text),
        AppConfig { clock, ..config() },
    );
    // The script reports 3 of the prompt's tokens as cached, and the answer has 3 tokens.
    let prompt: Vec<u32> = (10..93).collect();
    let body = || json!({"prompt": prompt});
    let answer = ask(&server, "acme", "POST", "/v1/completions", body()).await;
    assert_eq!(answer.status(), 200);
    let (status, answer) = post(&server, "acme", "/v1/completions", body()).await;
    assert_eq!((status.as_u16(), code(&answer)), (429, "rate_limit_exceeded"));
    // 83 of 60 tokens were used: 24 more are needed before one is available.
    assert!(answer["error"]["message"].as_str().unwrap().contains("24s"), "{answer}");
    ms.store(24_000, Ordering::Relaxed);
    assert_eq!(post(&server, "acme", "/v1/completions", body()).await.0, 200);
}

#[tokio::test]
async fn what_was_given_up_is_charged_too() {
    let text = PAIR.replace("KEY:acme;", "KEY:acme;\ntokens-per-minute = 10");
    let server = busy_server(&text);
    let running = stream(&server, "acme").await;
    let request = server.engine.asked.lock().unwrap()[0].clone();
    let mut sink = server.engine.open.lock().unwrap().pop().unwrap();
    drop(running);
    assert!(sink.is_closed());
    sink.given_up(&report(&request, 5));
    drop(sink);
    assert_eq!(status(&server, "acme").await, 429);
    assert_eq!(usage(&server, "acme", "").await[0].2, 1);
}

#[tokio::test]
async fn prompts_at_a_time_are_limited_until_they_end() {
    let server = busy_server(&PAIR.replace("KEY:acme;", "KEY:acme;\nparallel = 2"));
    let first = stream(&server, "acme").await;
    let second = stream(&server, "acme").await;
    let refused = chat(&server, "acme").await;
    assert_eq!(refused.headers()["retry-after"], "1");
    assert_eq!(code(&json_of(refused).await.1), "rate_limit_exceeded");
    let beta = stream(&server, "beta").await;
    // The engine notices a closed connection and then releases the request.
    drop((first, second, beta));
    server.engine.open.lock().unwrap().clear();
    let third = stream(&server, "acme").await;
    let many = post(&server, "acme", "/v1/completions", json!({"prompt": ["a", "b", "c"]})).await;
    assert_eq!((many.0.as_u16(), many.1["error"]["param"].as_str()), (400, Some("prompt")));
    drop(third);
}

/// The next request is admitted as soon as the client has read the end of an answer.
#[tokio::test]
async fn a_slot_is_free_before_the_answer_ends() {
    let server = server(&PAIR.replace("KEY:acme;", "KEY:acme;\nparallel = 1"));
    let mut unfinished = Vec::new();
    for turn in 0..3 {
        assert_eq!(chat(&server, "acme").await.status(), 200, "turn {turn}");
        let mut body = stream(&server, "acme").await.into_body().into_data_stream();
        while let Some(piece) = body.next().await {
            if piece.unwrap().ends_with(b"data: [DONE]\n\n") {
                break;
            }
        }
        unfinished.push(body);
    }
}

/// The engine has nothing left to do for it; what it holds is memory.
#[tokio::test]
async fn an_answer_that_nobody_reads_takes_no_slot() {
    let server = server(&PAIR.replace("KEY:acme;", "KEY:acme;\nparallel = 1"));
    let unread = stream(&server, "acme").await;
    assert_eq!(status(&server, "acme").await, 200);
    drop(unread);
}

#[tokio::test]
async fn a_flood_leaves_places_for_others() {
    let server = busy_server(PAIR);
    let mut running = Vec::new();
    for _ in 0..10 {
        running.push(stream(&server, "acme").await);
    }
    let (status, answer) = json_of(chat(&server, "acme").await).await;
    assert_eq!((status.as_u16(), code(&answer)), (429, "queue_full"), "it has half of the 20 places");
    for _ in 0..5 {
        running.push(stream(&server, "beta").await);
    }
    let alone = busy_server("[tenant.acme]\nKEY:acme;\n");
    drop(alone);
}

#[tokio::test]
async fn a_full_queue_says_nothing_about_others() {
    let full = |_: &Request| Err(RequestError::QueueFull { waiting: 4321, retry_after_s: 7 });
    let server = Server::build(full, keys(PAIR), config());
    let response = chat(&server, "acme").await;
    assert_eq!(response.headers()["retry-after"], "7");
    let (_, answer) = json_of(response).await;
    assert_eq!(code(&answer), "queue_full");
    assert!(!answer.to_string().contains("4321"), "{answer}");
}

#[tokio::test]
async fn answers_name_their_cost_to_the_last_digit() {
    let prices = "prices = { input = 2.5, cached = 0.1, output = 5, per = 1000 }";
    let server = server(&PAIR.replace("KEY:acme;", &format!("KEY:acme;\n{prices}")));
    // 3 of 40 prompt tokens come from the cache, 3 are generated: (37·2.5 + 3·0.1 + 3·5) / 1000.
    let prompt: Vec<u32> = (10..50).collect();
    let body = || json!({"prompt": prompt});
    for path in ["/v1/completions", "/completion"] {
        let (_, answer) = post(&server, "acme", path, body()).await;
        assert_eq!(answer["usage"]["cost"].to_string(), "0.1078", "{path}");
        let (_, answer) = post(&server, "beta", path, body()).await;
        assert!(answer["usage"].get("cost").is_none(), "without prices there is no cost");
    }
    let (_, both) = post(&server, "acme", "/v1/completions", json!({"prompt": [prompt, prompt]})).await;
    assert_eq!(both["usage"]["cost"].to_string(), "0.2156");
    let (_, both) = post(&server, "acme", "/completion", json!({"prompt": [prompt, prompt]})).await;
    assert_eq!(both[1]["usage"]["cost"].to_string(), "0.1078");

    let streamed = with(body(), json!({"stream": true, "stream_options": {"include_usage": true}}));
    let response = ask(&server, "acme", "POST", "/v1/completions", streamed).await;
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    assert_eq!(text.matches("\"cost\":0.1078").count(), 1, "{text}");
    let line = usage(&server, "root", "?tenant=acme").await.remove(0);
    // Two requests, two pairs, and the stream: seven prompts.
    assert_eq!((line.2, line.3.as_str()), (7, "0.7546"));
    for (path, body) in [
        ("/v1/chat/completions", hello()),
        ("/v1/messages", with(hello(), json!({"model": "x", "max_tokens": 9}))),
        ("/v1/responses", json!({"model": "x", "input": "Hello there, my friend."})),
    ] {
        let (_, answer) = post(&server, "acme", path, body.clone()).await;
        let computed = server.asked().prompt.len() as f64 - 3.0;
        let expect = (computed * 2.5 + 3.0 * 0.1 + 3.0 * 5.0) / 1000.0;
        let cost = answer["usage"]["cost"].as_f64().unwrap_or_else(|| panic!("{path}: {answer}"));
        assert!((cost - expect).abs() < 1e-9, "{path}: {cost} instead of {expect}");
        let (_, answer) = post(&server, "beta", path, body).await;
        assert!(answer["usage"].get("cost").is_none(), "{path}: {answer}");
    }
}

#[tokio::test]
async fn the_servers_prices_are_for_those_without_their_own() {
    let own = PAIR.replace("KEY:acme;", "KEY:acme;\nprices = { output = 1 }");
    let prices = Some(toml::from_str("output = 2").unwrap());
    let server = Server::build(
        |request| Ok(say(request, "Hi!", FinishReason::Eos)),
        keys(&own),
        AppConfig { prices, ..config() },
    );
    let cost = async |key: &str| {
        let (_, answer) = post(&server, key, "/v1/chat/completions", hello()).await;
        answer["usage"]["cost"].as_f64()
    };
    assert_eq!((cost("acme").await, cost("beta").await), (Some(3.0), Some(6.0)));
}

#[tokio::test]
async fn metrics_count_tenant_by_tenant() {
    let server = server(PAIR);
    for key in ["acme", "beta", "beta"] {
        assert_eq!(status(&server, key).await, 200);
    }
    let response = ask(&server, "root", "GET", "/metrics", Value::Null).await;
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    for line in [
        "kvik_tenant_requests_total{tenant=\"acme\"} 1",
        "kvik_tenant_requests_total{tenant=\"beta\"} 2",
        "kvik_tenant_cached_tokens_total{tenant=\"beta\"} 6",
        "kvik_tenant_generated_tokens_total{tenant=\"beta\"} 6",
        "kvik_generated_tokens_total 9",
    ] {
        assert!(text.contains(line), "{line} is in\n{text}");
    }
}

#[tokio::test]
async fn a_changed_file_is_in_force_at_once_and_what_runs_goes_on() {
    let server = busy_server(PAIR);
    let running = stream(&server, "beta").await;
    let before = server.engine.asked.lock().unwrap()[0].clone();
    let keys = server.app.keys();
    let changed = tenants("[tenant.beta]\nKEY:new-beta;\n[tenant.gamma]\nKEY:gamma;\n", keys.tenants());
    server.app.server.replace_keys(keys.with_tenants(changed).unwrap());
    for (key, expect) in [("acme", 401), ("beta", 401), ("root", 200)] {
        assert_eq!(get(&server, key, "/v1/models").await.0.as_u16(), expect, "{key}");
    }
    assert!(!server.engine.open.lock().unwrap()[0].is_closed());
    let again = stream(&server, "new-beta").await;
    let after = server.engine.asked.lock().unwrap()[1].clone();
    assert_eq!(before.tenant, after.tenant, "the tenant is the same by its name");
    drop((running, again));
}
