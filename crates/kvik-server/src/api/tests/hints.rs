//! Hints of other servers' clients: what the engine is asked to keep.

use kvik_cache::{Lifetime, RaisedPriority};

use super::*;

/// Returns how long the engine is asked to keep the prompt of a body with these fields.
async fn kept(path: &str, fields: Value) -> Lifetime {
    let server = Server::saying("Hi.");
    let base = match path {
        "/v1/responses" => json!({"model": "x", "input": "Hello there, my friend."}),
        "/v1/completions" | "/completion" => json!({"prompt": "Hello there, my friend."}),
        _ => hello(),
    };
    let (status, answer) = server.post(path, with(base, fields)).await;
    assert_eq!(status, 200, "{path}: {answer}");
    server.asked().lifetime
}

fn raised(priority: i8, secs: u64) -> Lifetime {
    let lasts = Duration::from_secs(secs);
    Lifetime { raised: Some(RaisedPriority { priority, lasts }), ..Lifetime::default() }
}

#[tokio::test]
async fn every_route_that_completes_reads_them() {
    let hints = [
        (json!({"prompt_cache_retention": "24h"}), raised(50, 86400)),
        (json!({"service_tier": "flex"}), Lifetime { priority: -50, ..Lifetime::default() }),
        (
            json!({"retention_directives": [{"start": 0, "end": 9, "priority": 80, "duration": 60}]}),
            raised(40, 60),
        ),
        (json!({"agent_hint": {"cache_control": {"type": "ephemeral"}}}), raised(25, 300)),
        (json!({"nvext": {"agent_hints": {"priority": 7}}}), raised(7, 300)),
        (
            json!({"service_tier": "flex", "kvik": {"priority": 3}}),
            Lifetime { priority: 3, ..Lifetime::default() },
        ),
        (json!({"service_tier": "flex", "kvik": {"priority": "normal"}}), Lifetime::default()),
        (json!({"cache_control": {"type": "ephemeral"}, "kvik": {"pin": false}}), Lifetime::default()),
        (json!({"prompt_cache_key": "a", "metadata": {"session": "b"}}), Lifetime::default()),
    ];
    for path in ["/v1/chat/completions", "/v1/completions", "/completion", "/v1/responses"] {
        for (fields, lifetime) in &hints {
            assert_eq!(kept(path, fields.clone()).await, *lifetime, "{path}: {fields}");
        }
    }
    let part = json!({"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral", "ttl": "1h"}});
    let messages = json!({"messages": [{"role": "user", "content": [part]}]});
    assert_eq!(kept("/v1/chat/completions", messages).await, raised(50, 3600));
}

/// The page of hints names it as the one exception.
#[tokio::test]
async fn messages_alone_refuses_what_anthropic_does() {
    let server = Server::saying("Hi.");
    for control in [json!({"type": "ephemeral", "ttl": "2h"}), json!({"type": "ephemeral", "ttl": 300})] {
        for (path, status) in [("/v1/messages", 400), ("/v1/chat/completions", 200)] {
            let body = with(hello(), json!({"max_tokens": 2, "cache_control": control}));
            let (found, answer) = server.post(path, body).await;
            assert_eq!(found, status, "{path}: {control}: {answer}");
        }
    }
}

/// Clients of other servers send their shapes of tomorrow.
#[tokio::test]
async fn none_of_any_shape_refuses_a_request() {
    for field in ["service_tier", "cache_control", "retention_directives", "agent_hint", "nvext"] {
        for value in [json!(7), json!("?"), json!([[]]), json!({"agent_hints": [], "cache_control": 3})] {
            assert_eq!(
                kept("/v1/chat/completions", json!({field: value})).await,
                Lifetime::default(),
                "{field}: {value}"
            );
        }
    }
}
