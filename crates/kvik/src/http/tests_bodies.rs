//! What bodies may cost: hostile and large ones over a scripted engine.

use std::time::Duration;

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

/// A body with as long a prompt as the context of the tests' model holds many times over.
fn long(more: &str) -> String {
    format!("{{\"prompt\": \"{}\"{more}}}", "a ".repeat(300_000))
}

#[tokio::test]
async fn a_prompt_that_cannot_fit_is_refused_before_it_is_copied() {
    let server = server();
    for route in ["/v1/completions", "/completion"] {
        let (status, answer) = post(&server, route, long(r#", "echo": true, "n": 64"#)).await;
        assert_eq!((status.as_u16(), &answer["error"]["code"]), (400, &json!("context_length_exceeded")));
        let tokens = answer["error"]["n_prompt_tokens"].as_u64().unwrap();
        assert!(tokens > 2048 && answer["error"]["n_ctx"] == 2048, "{answer}");
    }
    assert!(server.engine.asked.lock().unwrap().is_empty(), "nothing was submitted");
}

#[tokio::test]
async fn answers_repeat_prompts_up_to_a_limit() {
    let server = server();
    let tokenizer = &server.app.serving.tokenizer;
    let longest = (0..tokenizer.vocab_len() as u32).max_by_key(|&id| tokenizer.decode(&[id]).len()).unwrap();
    let ask = async |route: &str, prompts: usize, n: usize| {
        let body =
            json!({"prompt": vec![vec![longest; 2000]; prompts], "n": n, "echo": true, "max_tokens": 0});
        post(&server, route, body.to_string()).await
    };
    for (route, field) in [("/v1/completions", "echo"), ("/completion", "n")] {
        let (status, answer) = ask(route, 64, 64).await;
        assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!(field)));
    }
    let (_, answer) = ask("/v1/completions", 1, 3).await;
    let echoed = answer["choices"][2]["text"].as_str().unwrap();
    assert_eq!(echoed.len(), 2000 * tokenizer.decode(&[longest]).len());
}

#[tokio::test]
async fn tokenize_takes_texts_up_to_a_limit() {
    let config = AppConfig { body_limit: ByteSize(8 << 20), ..config() };
    let server = Server::build(done, Keys::new([]), config);
    let tokenize = async |bytes: usize, more: &str| {
        post(&server, "/tokenize", format!("{{\"content\": \"{}\"{more}}}", "a".repeat(bytes))).await
    };
    let (status, answer) = tokenize(1 << 20, "").await;
    let count = answer["tokens"].as_array().unwrap().len();
    assert!(status == 200 && count > 1000, "{count}");
    let (status, answer) = tokenize(1 << 20, ", \"with_pieces\": true").await;
    let pieces = answer["tokens"].as_array().unwrap();
    let bytes: usize = pieces.iter().map(|token| token["piece"].as_str().unwrap().len()).sum();
    assert_eq!((status.as_u16(), pieces.len(), bytes), (200, count, 1 << 20));
    let (status, answer) = tokenize((1 << 20) + 1, "").await;
    assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!("content")));
}

/// The engine's door is where reading ends: a request that stands there keeps its place for reading.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_body_that_takes_its_time_holds_up_no_small_one() {
    let (open, door) = std::sync::mpsc::channel::<()>();
    let door = std::sync::Mutex::new(door);
    let script = move |request: &Request| {
        if request.prompt.len() > 1000 {
            door.lock().unwrap().recv().ok();
        }
        done(request)
    };
    let server = Arc::new(Server::build(script, Keys::new([]), config()));
    let large = |server: Arc<Server>| {
        let body = json!({"prompt": vec![5; 1500], "user": "x".repeat(70_000)}).to_string();
        tokio::spawn(async move { post(&server, "/v1/completions", body).await.0 })
    };
    let slow: Vec<_> = (0..3).map(|_| large(server.clone())).collect();
    for route in ROUTES {
        let small = tokio::time::timeout(Duration::from_secs(60), post(&server, route, with(route, "")));
        assert_eq!(small.await.expect("it does not wait").0, 200);
    }
    drop(open);
    for answer in slow {
        assert_eq!(answer.await.unwrap(), 200);
    }
}
