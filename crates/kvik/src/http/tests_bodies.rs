//! What bodies may cost: hostile and large ones over a scripted engine.

use kvik_engine::api::{Event, Report, Request};
use serde_json::{Value, json};

use super::{
    tests::{Server, config, json_of},
    *,
};
use crate::size::ByteSize;

/// The routes that complete something.
const ROUTES: [&str; 3] = ["/v1/chat/completions", "/v1/completions", "/completion"];

/// A server whose engine answers nothing, at once.
fn server() -> Server {
    Server::build(done, Keys::new([]), config())
}

fn done(request: &Request) -> Result<Vec<Event>, kvik_engine::api::RequestError> {
    Ok(vec![Event::Done(Report { prompt_tokens: request.prompt.len(), ..Report::default() })])
}

async fn post(server: &Server, route: &str, body: String) -> (StatusCode, Value) {
    json_of(server.send_with("POST", route, body, &[("content-type", "application/json")]).await).await
}

/// A body that the route answers, and what else is in it.
fn with(route: &str, more: &str) -> String {
    let prompt = match route {
        "/v1/chat/completions" => r#""messages": [{"role": "user", "content": "hi"}]"#,
        _ => r#""prompt": "hi""#,
    };
    if more.is_empty() { format!("{{{prompt}}}") } else { format!("{{{prompt}, {more}}}") }
}

#[tokio::test]
async fn what_nobody_reads_is_not_built() {
    let server = server();
    let deep = format!("\"unknown\": {}{}", "[".repeat(200_000), "]".repeat(200_000));
    for route in ROUTES {
        // Building it would fail: JSON deeper than 128 levels is never built.
        let (status, answer) = post(&server, route, with(route, &deep)).await;
        assert_eq!(status, 200, "{route} {answer}");
    }
}

#[tokio::test]
async fn what_is_read_is_built_within_a_budget() {
    let config = AppConfig { body_limit: ByteSize(16 << 20), ..config() };
    let server = Server::build(done, Keys::new([]), config);
    let many = vec!["[[1]]"; 1_000_000].join(",");
    let check = async |route: &str, field: &str| {
        let (status, answer) = post(&server, route, with(route, &format!("\"{field}\": [{many}]"))).await;
        assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!(field)), "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("64 MiB"), "{answer}");
    };
    check("/v1/chat/completions", "tools").await;
    check("/v1/chat/completions", "messages").await;
    check("/v1/completions", "logit_bias").await;
    check("/completion", "stop").await;
    check("/completion", "json_schema").await;
}
