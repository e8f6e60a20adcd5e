//! An answer as its events arrive: its pieces, and its report at the end.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use serde_json::Value;

use super::error::{AskError, message_of};

/// Maximum bytes of an event. The last one has the report, which names at most some thousand positions.
const EVENT_BYTES_MAX: usize = 16 << 20;

/// A piece of an answer as it arrives.
#[derive(Debug, Clone, Copy)]
pub(crate) enum AnswerPiece<'a> {
    Reasoning(&'a str),
    Content(&'a str),
}

/// The end of an answer.
#[derive(Debug)]
pub(crate) enum Answered {
    Whole(Answer),
    /// Stopped by Ctrl-C.
    Stopped,
}

/// A complete answer.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Time from the request to the first token.
    pub(crate) first_token: Duration,
    /// The last chunk of the stream: `usage`, `timings` and `kvik`.
    pub(crate) report: Value,
    /// Whether its last piece is reasoning, as where its length is too short for an answer.
    pub(crate) ends_in_reasoning: bool,
}

/// The answer received so far, of a chat or of a completion.
pub(super) struct Reading {
    start: Instant,
    first_token: Option<Duration>,
    report: Value,
    in_reasoning: bool,
}

impl Reading {
    pub(super) fn begin() -> Reading {
        Reading { start: Instant::now(), first_token: None, report: Value::Null, in_reasoning: false }
    }

    /// Processes one chunk of the stream.
    pub(super) fn take(
        &mut self,
        chunk: Value,
        show: &mut dyn FnMut(AnswerPiece<'_>),
    ) -> Result<(), AskError> {
        if chunk.get("error").is_some() {
            let (status, message) = (StatusCode::INTERNAL_SERVER_ERROR, message_of(&chunk));
            return Err(AskError::Refused { status, message });
        }
        let choice = &chunk["choices"][0];
        let text = |value: &'_ Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        if let Some(text) = text(&choice["delta"]["reasoning_content"]) {
            self.note_token();
            self.in_reasoning = true;
            show(AnswerPiece::Reasoning(&text));
        }
        if let Some(text) = text(&choice["delta"]["content"]).or_else(|| text(&choice["text"])) {
            self.note_token();
            self.in_reasoning = false;
            show(AnswerPiece::Content(&text));
        }
        if chunk.get("kvik").is_some() {
            self.report = chunk;
        }
        Ok(())
    }

    fn note_token(&mut self) {
        self.first_token.get_or_insert_with(|| self.start.elapsed());
    }

    pub(super) fn end(self) -> Answer {
        let first_token = self.first_token.unwrap_or_else(|| self.start.elapsed());
        Answer { first_token, report: self.report, ends_in_reasoning: self.in_reasoning }
    }
}

/// Parses server-sent events from bytes that are split at arbitrary positions.
#[derive(Default)]
pub(super) struct EventReader {
    /// The incomplete last line.
    rest: Vec<u8>,
}

impl EventReader {
    /// The data of the events that are complete.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        self.rest.extend_from_slice(bytes);
        let end = self.rest.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
        let lines: Vec<u8> = self.rest.drain(..end).collect();
        let lines = String::from_utf8_lossy(&lines);
        lines.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect()
    }

    /// Whether the incomplete event is longer than any that kvik sends.
    pub(super) fn is_too_long(&self) -> bool {
        self.rest.len() > EVENT_BYTES_MAX
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
            json!({"choices": [{"text": "b"}]}),
            json!({"choices": [], "usage": {"prompt_tokens": 3}, "kvik": {}}),
        ];
        chunks.into_iter().for_each(|chunk| reading.take(chunk, &mut show).unwrap());
        let failed = reading.take(json!({"error": {"message": "no room"}}), &mut show).unwrap_err();
        assert_eq!(failed.to_string(), "no room");
        let answer = reading.end();
        assert_eq!((&answer.report["usage"]["prompt_tokens"], answer.ends_in_reasoning), (&json!(3), false));
        assert_eq!(shown, ["Reasoning(\"hm\")", "Content(\"a \")", "Content(\"b\")"]);
        let mut cut_off = Reading::begin();
        cut_off.take(chunk(json!({"reasoning_content": "hm"})), &mut |_| {}).unwrap();
        assert!(cut_off.end().ends_in_reasoning);
    }
}
