//! Answers in OpenAI's harmony format: messages, each with a header that names its channel and its recipient.
//!
//! ```text
//! <|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>
//! <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>
//! ```
//!
//! The recipient precedes or follows the channel. A message to a function is a call, a message in the channel
//! `analysis` is reasoning, every other message is content.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::read::Offer;
use super::reasoning::{AnswerPlace, CALL, CHANNEL, CONSTRAIN, END, MESSAGE, RETURN, START};
use super::search::TagSearch;
use super::{AnswerDelta, call_id, partial_tag};

/// Maximum bytes of a header; longer text is not a header.
const HEADER_MAX: usize = 512;
const FUNCTIONS: &str = "functions.";
/// Tags that end a message. A header may follow a message without an end.
const ENDS: [&str; 5] = [END, CALL, RETURN, START, CHANNEL];
/// Tags that may begin a header.
const HEADERS: [&str; 5] = [CHANNEL, START, CONSTRAIN, MESSAGE, "to="];

/// Parses one answer of messages.
#[derive(Debug)]
pub(super) struct Channels {
    at: At,
    offer: Option<Arc<Offer>>,
    salt: String,
    /// Text that is not classified yet.
    pending: String,
    /// The search for the end of a message in it.
    search: TagSearch,
    calls: usize,
}

#[derive(Debug)]
enum At {
    Header,
    Message(Kind),
    /// The maximum number of calls has been read; all text after them is dropped.
    Over,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Content,
    /// A call; if it is certain, its arguments have been emitted as far as they have arrived.
    Call {
        name: String,
        certain: bool,
    },
}

impl Channels {
    pub(super) fn new(place: AnswerPlace, offer: Option<Arc<Offer>>, salt: &str) -> Channels {
        let at = match place {
            AnswerPlace::Begin => At::Header,
            AnswerPlace::Reasoning => At::Message(Kind::Reasoning),
            AnswerPlace::Content => At::Message(Kind::Content),
        };
        let (pending, search) = (String::new(), TagSearch::default());
        Channels { at, offer, salt: salt.into(), pending, search, calls: 0 }
    }

    /// See [`AnswerParser::unconstrain`](super::AnswerParser::unconstrain).
    pub(super) fn unconstrain(&mut self) {
        Offer::unconstrain(&mut self.offer);
    }

    pub(super) fn push(&mut self, text: &str) -> Vec<AnswerDelta> {
        self.pending.push_str(text);
        let mut deltas = Vec::new();
        while self.step(false, &mut deltas) {}
        deltas
    }

    pub(super) fn finish(&mut self) -> Vec<AnswerDelta> {
        let mut deltas = Vec::new();
        while self.step(true, &mut deltas) {}
        deltas
    }

    /// Bytes at the end of the text so far that are in no delta yet.
    pub(super) fn held_bytes(&self) -> usize {
        self.pending.len()
    }

    /// Classifies as much of the pending text as possible; returns whether more is possible. `done` if no
    /// more text follows.
    fn step(&mut self, done: bool, deltas: &mut Vec<AnswerDelta>) -> bool {
        match &self.at {
            At::Header => self.step_header(done, deltas),
            At::Message(kind) => {
                let kind = kind.clone();
                self.step_message(&kind, done, deltas)
            }
            At::Over => {
                self.pending.clear();
                false
            }
        }
    }

    fn step_header(&mut self, done: bool, deltas: &mut Vec<AnswerDelta>) -> bool {
        let rest = self.pending.trim_start();
        if !HEADERS.iter().any(|text| text.starts_with(rest) || rest.starts_with(text)) {
            self.at = At::Message(Kind::Content);
            return true;
        }
        match self.pending.find(MESSAGE).filter(|&at| at <= HEADER_MAX) {
            Some(at) => {
                let kind = self.kind(&self.pending[..at]);
                self.pending.drain(..at + MESSAGE.len());
                self.begin(&kind, deltas);
                self.at = At::Message(kind);
                true
            }
            // An incomplete header is not text.
            None if done => {
                self.pending.clear();
                false
            }
            None if self.pending.len() < HEADER_MAX + MESSAGE.len() => false,
            None => {
                let tag = HEADERS.iter().find(|tag| self.pending.starts_with(**tag));
                self.pending.drain(..tag.map_or(0, |tag| tag.len()));
                self.at = At::Message(Kind::Content);
                true
            }
        }
    }

    /// The kind of the message after a header.
    fn kind(&self, header: &str) -> Kind {
        let header = header.rsplit(START).next().unwrap_or(header);
        let recipient = header.split_once("to=").map(|(_, rest)| word(rest)).unwrap_or_default();
        let name = recipient.strip_prefix(FUNCTIONS).filter(|_| self.offer.is_some());
        if let (Some(name), Some(offer)) = (name, &self.offer) {
            return Kind::Call { name: name.to_owned(), certain: offer.certain };
        }
        let channel = header.rsplit_once(CHANNEL).map(|(_, rest)| word(rest)).unwrap_or_default();
        // Tools that were not offered are also addressed in the reasoning channel.
        let is_for_tool = !matches!(recipient, "" | "assistant" | "all");
        if channel == "analysis" && !is_for_tool { Kind::Reasoning } else { Kind::Content }
    }

    fn begin(&mut self, kind: &Kind, deltas: &mut Vec<AnswerDelta>) {
        if let Kind::Call { name, certain: true } = kind {
            self.push_call(name, String::new(), deltas);
        }
    }

    fn step_message(&mut self, kind: &Kind, done: bool, deltas: &mut Vec<AnswerDelta>) -> bool {
        let end = self.search.find(&self.pending, &ENDS);
        let (streams, text) = match (end, kind) {
            (Some((at, _)), _) => (true, at),
            (None, _) if done => (true, self.pending.len()),
            (None, Kind::Call { certain: false, .. }) => (false, 0),
            (None, _) => {
                let partial = ENDS.iter().map(|tag| partial_tag(&self.pending, tag)).max().unwrap_or(0);
                (true, self.pending.len() - partial)
            }
        };
        if streams {
            let text: String = self.pending.drain(..text).collect();
            self.search = TagSearch::default();
            self.say(kind, text, deltas);
        }
        let Some((_, tag)) = end else { return false };
        // START and CHANNEL begin the next header.
        if tag != START && tag != CHANNEL {
            self.pending.drain(..tag.len());
        }
        let calls_max = self.offer.as_ref().map_or(usize::MAX, |offer| offer.calls_max);
        self.at = if self.calls >= calls_max { At::Over } else { At::Header };
        true
    }

    /// Emits text of a message; a call that is not certain must be complete.
    fn say(&mut self, kind: &Kind, text: String, deltas: &mut Vec<AnswerDelta>) {
        if text.is_empty() && !matches!(kind, Kind::Call { certain: false, .. }) {
            return;
        }
        match (kind, deltas.last_mut()) {
            (Kind::Reasoning, Some(AnswerDelta::Reasoning(last)))
            | (Kind::Content, Some(AnswerDelta::Content(last))) => last.push_str(&text),
            (Kind::Reasoning, _) => deltas.push(AnswerDelta::Reasoning(text)),
            (Kind::Content, _) => deltas.push(AnswerDelta::Content(text)),
            (Kind::Call { certain: true, .. }, _) => {
                deltas.push(AnswerDelta::Arguments { index: self.calls.saturating_sub(1), text });
            }
            (Kind::Call { name, certain: false }, _) => match arguments(&text) {
                Some(arguments) => self.push_call(name, arguments, deltas),
                // Text of a failed call is emitted as content.
                None => self.say(&Kind::Content, text, deltas),
            },
        }
    }

    fn push_call(&mut self, name: &str, arguments: String, deltas: &mut Vec<AnswerDelta>) {
        let (index, id) = (self.calls, call_id(&self.salt, self.calls, name));
        deltas.push(AnswerDelta::ToolCall { index, id, name: name.to_owned(), arguments });
        self.calls += 1;
    }
}

/// The first word of a text.
fn word(text: &str) -> &str {
    let end = text.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(text.len());
    &text[..end]
}

/// The arguments in a message to a function, verbatim; `None` if it is not a JSON object.
fn arguments(text: &str) -> Option<String> {
    let text = text.trim();
    if text.is_empty() {
        return Some("{}".into());
    }
    serde_json::from_str::<Map<String, Value>>(text).ok().map(|_| text.to_owned())
}
