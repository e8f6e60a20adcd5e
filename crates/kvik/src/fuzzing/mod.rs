//! Entry points for fuzzing: one request to all routes over the real engine, in process, and the parsers of other
//! sockets.
//!
//! An input is a line with a method and a path, such as `POST /v1/completions`, followed by the body.
//! `fuzz/fuzz_targets/http_body.rs` calls [`http_body`] under libFuzzer, `tests.rs` on mutants of the corpus.

#[cfg(test)]
mod fields;
#[cfg(test)]
mod lenient;
#[cfg(test)]
mod mutate;
#[cfg(test)]
mod tests;

use std::{sync::OnceLock, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Method, Request, StatusCode, Uri, header},
};
use clap::Parser;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::command::{Cli, Task, serve};
use kvik_server::api;

/// How long an answer is read; then the client disconnects, like one whose patience has run out.
const PATIENCE: Duration = Duration::from_secs(3);
/// Maximum bytes of an answer.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A server without a port.
struct Server {
    runtime: Runtime,
    router: Router,
}

impl Server {
    /// The server of this process, with the embedded model and little memory.
    fn shared() -> &'static Server {
        static SERVER: OnceLock<Server> = OnceLock::new();
        SERVER.get_or_init(|| Server::start().expect("the server starts"))
    }

    fn start() -> anyhow::Result<Server> {
        let state = std::env::temp_dir().join(format!("kvik-fuzz-{}", std::process::id()));
        let state = state.to_string_lossy();
        let flags = ["--cache-ram", "8MiB", "--context", "1024", "--threads", "1", "--cache-disk", "off"];
        let command = ["kvik", "serve", "--state-dir", &state].into_iter().chain(flags);
        let Task::Serve(args) = Cli::try_parse_from(command)?.task else {
            anyhow::bail!("`kvik serve` is no server");
        };
        let runtime = Runtime::new()?;
        let router = api::router(runtime.block_on(async { serve::without_port(&args) })?);
        Ok(Server { runtime, router })
    }

    /// The answer, or `None` if it did not arrive in time.
    fn send(&self, method: Method, path: &str, body: &[u8]) -> Option<(StatusCode, String, Vec<u8>)> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "127.0.0.1")
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONTENT_LENGTH, body.len())
            // Anthropic's routes require it.
            .header("anthropic-version", "2023-06-01")
            .body(Body::from(body.to_vec()))
            .ok()?;
        let answer = async {
            let Ok(response) = TowerToHyperService::new(self.router.clone()).call(request).await;
            let status = response.status();
            let kind = response.headers().get(header::CONTENT_TYPE);
            let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default().to_owned();
            let bytes = to_bytes(response.into_body(), ANSWER_BYTES_MAX).await.expect("an answer is whole");
            (status, kind, bytes.to_vec())
        };
        self.runtime.block_on(async { tokio::time::timeout(PATIENCE, answer).await.ok() })
    }

    /// Fails unless another client is answered: a long answer may take more than patience, and stops nobody else.
    fn answer_another(&self, behind: &str) {
        let other = br#"{"prompt": "Once", "max_tokens": 1}"#;
        let answer = self.send(Method::POST, "/v1/completions", other);
        assert!(answer.is_some(), "no answer behind {behind}");
    }
}

/// Parses the bytes that a peer of the KV events sends.
#[cfg(fuzzing)]
pub fn zmtp(input: &[u8]) {
    kvik_serving::kv_events::fuzz_zmtp(input);
}

/// Sends one input.
///
/// # Panics
///
/// If the answer is invalid: an internal error, an error of the wrong shape, or a stream that ends without a final
/// frame; or if it does not arrive in time, and neither does that of another client.
pub fn http_body(input: &[u8]) {
    answer_to(input);
}

/// Checks the answer to an input and returns its status; `None` if the input is not a request, or the answer did not
/// arrive in time.
fn answer_to(input: &[u8]) -> Option<StatusCode> {
    let end = input.iter().position(|&byte| byte == b'\n')?;
    let (head, body) = (std::str::from_utf8(&input[..end]).ok()?, &input[end + 1..]);
    let (method, path) = head.split_once(' ')?;
    let method = Method::from_bytes(method.as_bytes()).ok()?;
    path.parse::<Uri>().ok()?;
    let answer = Server::shared().send(method, path, body);
    if answer.is_none() {
        Server::shared().answer_another(head);
    }
    let (status, kind, answer) = answer?;
    check(head, status, &kind, &String::from_utf8_lossy(&answer));
    Some(status)
}

fn check(head: &str, status: StatusCode, kind: &str, answer: &str) {
    // Unsupported features of this model are refused with 501, as in llama-server.
    let refused = status.is_client_error() || status == StatusCode::NOT_IMPLEMENTED;
    assert!(refused || !status.is_server_error(), "{head}: {status} {answer}");
    if refused {
        check_error(head, &parsed(head, answer));
    } else if kind == "text/event-stream" {
        let frames = answer.lines().filter_map(|line| line.strip_prefix("data: "));
        check_stream(head, &frames.collect::<Vec<_>>());
    } else if kind == "application/x-ndjson" {
        check_stream(head, &answer.lines().collect::<Vec<_>>());
    } else if kind == "application/json" {
        parsed(head, answer);
    }
}

fn parsed(head: &str, answer: &str) -> Value {
    serde_json::from_str(answer).unwrap_or_else(|_| panic!("{head}: {answer}"))
}

/// Checks that errors have the form of their dialect.
fn check_error(head: &str, answer: &Value) {
    let error = &answer["error"];
    let is_said = |text: &Value| text.as_str().is_some_and(|text| !text.is_empty());
    let path = head.split(' ').nth(1).unwrap_or_default();
    if path.starts_with("/api/") {
        assert!(is_said(error), "{head}: {answer}");
    } else {
        assert!(is_said(&error["message"]) && error["type"].is_string(), "{head}: {answer}");
    }
    // Ollama's is a text, Anthropic's has two fields, and all others have OpenAI's four.
    if !path.starts_with("/api/") && !path.starts_with("/v1/messages") {
        for field in ["param", "code"] {
            let value = error.get(field);
            let is_plain =
                value.is_some_and(|value| value.is_string() || value.is_null() || value.is_number());
            assert!(is_plain, "{head}: {answer}");
        }
    }
}

/// Checks that frames are JSON, and that the last marks the end or reports an error.
fn check_stream(head: &str, frames: &[&str]) {
    let last = frames.last().unwrap_or_else(|| panic!("{head}: an empty stream"));
    for frame in frames.iter().filter(|frame| **frame != "[DONE]") {
        let frame_json = parsed(head, frame);
        let error = frame_json.get("error").unwrap_or(&frame_json["response"]["error"]);
        assert!(error["code"] != "internal_error" && error["type"] != "api_error", "{head}: {frame}");
    }
    const ENDS: [&str; 7] = [
        "\"error\"",
        "\"stop\":true",
        "\"done\":true",
        "\"type\":\"message_stop\"",
        "\"type\":\"response.completed\"",
        "\"type\":\"response.incomplete\"",
        "\"type\":\"response.failed\"",
    ];
    let ended = *last == "[DONE]" || ENDS.iter().any(|end| last.contains(end));
    assert!(ended, "{head}: the stream ends with {last}");
}
