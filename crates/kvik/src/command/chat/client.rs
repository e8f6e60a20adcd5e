//! A client of the server's routes in the same process: the terminal sends the same requests as over HTTP, so that
//! there is one path for all turns.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Method, Request, StatusCode, header},
    response::Response,
};
use serde_json::Value;
use tokio::{runtime::Runtime, sync::watch};
use tokio_stream::StreamExt;
use tower::ServiceExt;

use crate::command::talk::AnswerPiece;

/// The routes, and the threads that they run on.
pub(super) struct LocalClient {
    runtime: Runtime,
    router: Router,
    /// Signals Ctrl-C to the running answer.
    interrupts: watch::Sender<()>,
}

/// The end of an answer.
#[derive(Debug)]
pub(super) enum Answered {
    Whole(Answer),
    /// Stopped by Ctrl-C.
    Stopped,
}

/// A complete answer.
#[derive(Debug)]
pub(super) struct Answer {
    /// Time from the request to the first token.
    pub(super) first_token: Duration,
    /// The last chunk of the stream: `usage`, `timings` and `kvik`.
    pub(super) report: Value,
}

/// The error of a refused request.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct Refused {
    pub(super) status: StatusCode,
    message: String,
}

impl LocalClient {
    /// Installs a handler of Ctrl-C that stops the running answer, or the program if there is none.
    pub(super) fn new(runtime: Runtime, router: Router) -> LocalClient {
        let interrupts = watch::Sender::new(());
        runtime.spawn(stop_on_interrupt(interrupts.clone()));
        LocalClient { runtime, router, interrupts }
    }

    /// Requests a route, with a JSON body or none, and returns the JSON of its answer.
    pub(super) fn call(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&self.text(method, path, body)?)?)
    }

    /// Requests a route, and returns its answer as text.
    pub(super) fn text(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<String> {
        self.runtime.block_on(async {
            let response = self.send(method, path, body).await?;
            whole(response).await
        })
    }

    /// Requests a streamed answer to a chat; `show` is called with every piece as it arrives.
    pub(super) fn chat(
        &self,
        body: &Value,
        show: &mut dyn FnMut(AnswerPiece<'_>),
    ) -> anyhow::Result<Answered> {
        let mut interrupted = self.interrupts.subscribe();
        self.runtime.block_on(async {
            tokio::select! {
                answer = self.stream(body, show) => answer.map(Answered::Whole),
                // Returning drops the response, which ends the work at the engine's next step.
                _ = interrupted.changed() => Ok(Answered::Stopped),
            }
        })
    }

    async fn stream(&self, body: &Value, show: &mut dyn FnMut(AnswerPiece<'_>)) -> anyhow::Result<Answer> {
        let mut reading = Reading::begin();
        let response = self.send(Method::POST, "/v1/chat/completions", Some(body)).await?;
        let mut bytes = response.into_body().into_data_stream();
        let mut events = EventReader::default();
        while let Some(bytes) = bytes.next().await {
            for event in events.push(&bytes.context("the answer broke off")?) {
                if event == "[DONE]" {
                    return Ok(reading.end());
                }
                reading.take(serde_json::from_str(&event)?, show)?;
            }
        }
        bail!("the answer ended before it was complete")
    }

    /// The response to a request; an error if it was refused.
    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<Response> {
        let request = Request::builder().method(method).uri(path);
        let request = request.header(header::CONTENT_TYPE, "application/json");
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let Ok(response) = self.router.clone().oneshot(request.body(body)?).await;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let message = message_of(&serde_json::from_str(&whole(response).await?)?);
        Err(Refused { status, message }.into())
    }
}

/// The answer received so far.
struct Reading {
    start: Instant,
    first_token: Option<Duration>,
    report: Value,
}

impl Reading {
    fn begin() -> Reading {
        Reading { start: Instant::now(), first_token: None, report: Value::Null }
    }

    /// Processes one chunk of the stream.
    fn take(&mut self, chunk: Value, show: &mut dyn FnMut(AnswerPiece<'_>)) -> anyhow::Result<()> {
        if chunk.get("error").is_some() {
            bail!("{}", message_of(&chunk));
        }
        let delta = &chunk["choices"][0]["delta"];
        let text = |field: &str| delta[field].as_str().filter(|text| !text.is_empty());
        if let Some(text) = text("reasoning_content") {
            self.note_token();
            show(AnswerPiece::Reasoning(text));
        }
        if let Some(text) = text("content") {
            self.note_token();
            show(AnswerPiece::Content(text));
        }
        if chunk.get("kvik").is_some() {
            self.report = chunk;
        }
        Ok(())
    }

    fn note_token(&mut self) {
        self.first_token.get_or_insert_with(|| self.start.elapsed());
    }

    fn end(self) -> Answer {
        let first_token = self.first_token.unwrap_or_else(|| self.start.elapsed());
        Answer { first_token, report: self.report }
    }
}

/// Parses server-sent events from bytes that are split at arbitrary positions.
#[derive(Default)]
struct EventReader {
    /// The incomplete last line.
    rest: Vec<u8>,
}

impl EventReader {
    /// The data of the events that are complete.
    fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        self.rest.extend_from_slice(bytes);
        let end = self.rest.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
        let lines: Vec<u8> = self.rest.drain(..end).collect();
        let lines = String::from_utf8_lossy(&lines);
        lines.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect()
    }
}

/// The text of a whole response.
async fn whole(response: Response) -> anyhow::Result<String> {
    let bytes = to_bytes(response.into_body(), usize::MAX).await?;
    Ok(String::from_utf8(bytes.into())?)
}

fn message_of(error: &Value) -> String {
    error["error"]["message"].as_str().unwrap_or("the request was refused").to_owned()
}

/// Ends the running answer at Ctrl-C, or the program if there is none. (At the prompt of a terminal it is an ordinary
/// key.)
async fn stop_on_interrupt(interrupts: watch::Sender<()>) {
    while tokio::signal::ctrl_c().await.is_ok() {
        if interrupts.send(()).is_err() {
            // The status that a shell reports for a process ended by SIGINT.
            std::process::exit(130);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_are_read_wherever_their_bytes_are_cut() {
        let text = "data: {\"a\":\"é\"}\n\n: comment\n\ndata: [DONE]\n\n";
        for cut in 0..=text.len() {
            let mut events = EventReader::default();
            let (head, tail) = text.as_bytes().split_at(cut);
            let read = [events.push(head), events.push(tail)].concat();
            assert_eq!(read, ["{\"a\":\"é\"}", "[DONE]"], "cut at {cut}");
        }
    }

    #[test]
    fn a_stream_is_its_pieces_and_its_report() {
        let mut reading = Reading::begin();
        let mut shown = Vec::new();
        let mut show = |piece: AnswerPiece<'_>| shown.push(format!("{piece:?}"));
        let chunk = |delta: Value| json!({"choices": [{"delta": delta}]});
        let chunks = [
            chunk(json!({"role": "assistant", "content": ""})),
            chunk(json!({"reasoning_content": "hm"})),
            chunk(json!({"content": "a "})),
            chunk(json!({"content": "b"})),
            json!({"choices": [], "usage": {"prompt_tokens": 3}, "kvik": {}}),
        ];
        chunks.into_iter().for_each(|chunk| reading.take(chunk, &mut show).unwrap());
        let failed = reading.take(json!({"error": {"message": "no room"}}), &mut show).unwrap_err();
        assert_eq!(failed.to_string(), "no room");
        assert_eq!(reading.end().report["usage"]["prompt_tokens"], 3);
        assert_eq!(shown, ["Reasoning(\"hm\")", "Content(\"a \")", "Content(\"b\")"]);
    }
}
