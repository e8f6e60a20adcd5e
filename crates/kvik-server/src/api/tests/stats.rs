//! `GET /v1/stats`: totals since the start, of the server for the administrator and of itself for a tenant.

use kvik_engine::api::{Event, FinishReason, Request, RequestError};
use serde_json::{Value, json};

use super::{
    Server, config, hello, json_of, say,
    tenants::{ask, keys},
};

const PAIR: &str = "[tenant.acme]\nKEY:acme;\nrequests-per-minute = 8\n[tenant.beta]\nKEY:beta;\n";

/// Answers every prompt except those scripted to fail or to find the queue full.
fn script(request: &Request) -> Result<Vec<Event>, RequestError> {
    match request.max_tokens {
        7 => Ok(vec![Event::Failed(RequestError::Internal("for the test".into()))]),
        8 => Err(RequestError::QueueFull { waiting: 3, retry_after_s: 1 }),
        _ => Ok(say(request, "Hi!", FinishReason::Eos)),
    }
}

async fn stats(server: &Server, key: &str) -> Value {
    let (status, mut answer) = json_of(ask(server, key, "GET", "/v1/stats", Value::Null).await).await;
    assert_eq!(status, 200, "{answer}");
    let time = |name: &str| answer[name].as_f64().unwrap();
    assert!(time("started") > 1e9 && time("time") >= time("started"), "{answer}");
    let fields = answer.as_object_mut().unwrap();
    fields.retain(|name, _| !["time", "started"].contains(&name.as_str()));
    answer
}

async fn chat(server: &Server, key: &str, max_tokens: usize) -> u16 {
    let body = super::with(hello(), json!({"max_tokens": max_tokens}));
    ask(server, key, "POST", "/v1/chat/completions", body).await.status().as_u16()
}

#[tokio::test]
async fn a_tenant_sees_its_own_totals_and_the_admin_all() {
    let server = Server::build(script, keys(PAIR), config());
    let untouched = stats(&server, "beta").await;
    assert_eq!(untouched["requests"], json!({"answered": 0, "failed": 0, "refused": 0}));
    let asked = [chat(&server, "acme", 1).await, chat(&server, "acme", 2).await];
    assert_eq!(asked, [200, 200]);
    assert_eq!((chat(&server, "acme", 7).await, chat(&server, "acme", 8).await), (500, 429));

    let prompt = 2 * server.asked().prompt.len();
    let acme = json!({
        "object": "stats",
        "scope": "tenant",
        "tokens": {
            "prompt": prompt, "cached": 6, "by_tier": {"ram": 6, "disk": 0}, "computed": prompt - 6, "generated": 6,
        },
        "requests": {"answered": 2, "failed": 1, "refused": 1},
        "queue": null,
        "kv": null,
    });
    assert_eq!(stats(&server, "acme").await, acme);
    assert_eq!(stats(&server, "beta").await, untouched, "of another it learns nothing");

    assert_eq!(chat(&server, "beta", 1).await, 200);
    let prompts = prompt / 2 * 3;
    let all = json!({
        "object": "stats",
        "scope": "server",
        "tokens": {
            "prompt": prompts, "cached": 9, "by_tier": {"ram": 9, "disk": 0}, "computed": prompts - 9, "generated": 0,
        },
        "requests": {"answered": 3, "failed": 1, "refused": 1},
        "queue": {"running": 2, "waiting": 2, "parallel": 4},
        "kv": {"ram": {"bytes": 2048, "capacity_bytes": 4096, "pinned_bytes": 0}, "disk": null},
    });
    assert_eq!(
        stats(&server, "root").await,
        all,
        "what is generated the engine counts, and a script does not"
    );
}

#[tokio::test]
async fn what_a_limit_turns_away_is_counted_for_its_tenant() {
    let server = Server::build(script, keys(PAIR), config());
    for number in 0..10 {
        assert_eq!(chat(&server, "acme", 1).await, if number < 8 { 200 } else { 429 });
    }
    assert_eq!(stats(&server, "root").await["requests"], json!({"answered": 8, "failed": 0, "refused": 2}));
}
