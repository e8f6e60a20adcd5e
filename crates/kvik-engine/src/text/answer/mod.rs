//! Splits a model's answer into reasoning, content and tool calls while it streams.
//!
//! The result does not depend on how the text was cut into pieces. Text is held back only while it can
//! still become a tag or a call, and none is lost: text that resembles a call and is not one becomes
//! content. Line breaks next to tags belong to the format, not to the text, and are dropped.

mod form;
mod json;
mod read;

use std::sync::Arc;

use json::Balance;
use read::{CallRead, WaitFor};

pub use form::{ArgumentsForm, ForcedCall, ToolForm};
pub use read::Offer;

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerDelta {
    /// More reasoning.
    Reasoning(String),
    /// More content.
    Content(String),
    /// A tool call, with its arguments or their beginning.
    ToolCall {
        /// Position among the calls of this answer, from 0.
        index: usize,
        /// Identifier of this call, under which the client returns its result.
        id: String,
        /// The tool.
        name: String,
        /// Its arguments as JSON text, exactly as the model wrote them if it wrote JSON. Where a constraint holds the
        /// answer to the form of calls these are its first characters, and [`Arguments`](AnswerDelta::Arguments) follow.
        arguments: String,
    },
    /// More arguments of the last call.
    Arguments {
        /// Position of the call among the calls of this answer.
        index: usize,
        /// How its arguments go on.
        text: String,
    },
}

const THINK: &str = "<think>";
const THINK_END: &str = "</think>";
/// Llama 3 may write this before a call that has no other tag.
const PYTHON_TAG: &str = "<|python_tag|>";

/// Parses one answer.
#[derive(Debug)]
pub struct AnswerParser {
    state: State,
    /// Tools that may be called; without them calls are content.
    offer: Option<Arc<Offer>>,
    /// Goes into the ids of tool calls.
    salt: String,
    /// Text that is not classified yet.
    pending: String,
    /// The last text was a tag, so line breaks that follow are dropped.
    after_tag: bool,
    /// Text other than white space has been emitted since the last tag.
    emitted: bool,
    /// A tag was seen: white space at the end is format, not text.
    tagged: bool,
    /// Reasoning can still begin: it precedes all content.
    may_reason: bool,
    /// The model may repeat the opening tag of reasoning that the prompt has opened.
    may_reopen: bool,
    /// No content has been emitted yet: a call without a tag can begin.
    at_start: bool,
    calls: usize,
}

#[derive(Debug)]
enum State {
    Reasoning,
    Content,
    /// In text that may be a call.
    Calling(Calling),
    /// After a call, where another one without a tag of its own may follow.
    Between,
    /// The maximum number of calls has been read; all text after them is dropped.
    Over,
}

/// A possible call that is not complete.
#[derive(Debug)]
struct Calling {
    /// The text removed as its beginning; content again if it is not a call.
    taken: String,
    /// Whether it is the first call of its section.
    first: bool,
    wait: Waiting,
    /// What of its arguments has been emitted, once the call is certain.
    sent: Option<Sent>,
}

/// How far the arguments of an incomplete call have been emitted.
#[derive(Debug)]
struct Sent {
    /// Byte of the pending text behind what was emitted.
    until: usize,
    /// Bytes of the arguments that were emitted.
    bytes: usize,
    balance: Balance,
    /// All of the arguments was.
    complete: bool,
}

/// The text that an incomplete call waits for, and how far the pending text has been searched.
#[derive(Debug)]
enum Waiting {
    Any,
    Object { balance: Balance, searched: usize },
    Text { text: String, searched: usize },
}

impl AnswerParser {
    /// `starts_in_reasoning` if the prompt ended with an open `<think>`; `offer` if the request has tools,
    /// otherwise calls are content.
    pub fn new(starts_in_reasoning: bool, offer: Option<Arc<Offer>>) -> AnswerParser {
        AnswerParser {
            state: if starts_in_reasoning { State::Reasoning } else { State::Content },
            offer,
            salt: String::new(),
            pending: String::new(),
            after_tag: starts_in_reasoning,
            emitted: false,
            tagged: starts_in_reasoning,
            may_reason: true,
            may_reopen: starts_in_reasoning,
            at_start: true,
            calls: 0,
        }
    }

    /// Sets a salt that makes the ids of this answer's tool calls differ from those of other answers.
    pub fn with_salt(mut self, salt: &str) -> AnswerParser {
        self.salt = salt.into();
        self
    }

    /// Adds text; returns the parts that it completes.
    pub fn push(&mut self, text: &str) -> Vec<AnswerDelta> {
        self.pending.push_str(text);
        let mut deltas = Vec::new();
        while self.step(false, &mut deltas) {}
        deltas
    }

    /// Ends the answer; returns the text that was held back.
    pub fn finish(&mut self) -> Vec<AnswerDelta> {
        let mut deltas = Vec::new();
        while self.step(true, &mut deltas) {}
        let rest = std::mem::take(&mut self.pending);
        match self.state {
            State::Reasoning => self.push_reasoning(&rest, &mut deltas),
            State::Content if self.tagged && !self.emitted && rest.trim().is_empty() => {}
            State::Content => self.push_content(&rest, &mut deltas),
            State::Between | State::Over | State::Calling(_) => {}
        }
        deltas
    }

    /// Classifies as much of the pending text as possible; returns whether the state has changed. `done` if
    /// no more text follows.
    fn step(&mut self, done: bool, deltas: &mut Vec<AnswerDelta>) -> bool {
        match &self.state {
            State::Reasoning => self.step_reasoning(deltas),
            State::Content => self.step_content(deltas),
            State::Calling(_) => self.step_calling(done, deltas),
            State::Between => self.step_between(done),
            State::Over => {
                self.pending.clear();
                false
            }
        }
    }

    fn step_reasoning(&mut self, deltas: &mut Vec<AnswerDelta>) -> bool {
        if self.may_reopen {
            let start = self.pending.trim_start();
            if start.len() < THINK.len() && THINK.starts_with(start) {
                return false;
            }
            if let Some(rest) = start.strip_prefix(THINK) {
                self.pending = rest.to_owned();
            }
            self.may_reopen = false;
        }
        match self.pending.find(THINK_END) {
            Some(at) => {
                let rest = self.pending.split_off(at + THINK_END.len());
                let thought = std::mem::replace(&mut self.pending, rest);
                self.push_reasoning(thought[..at].trim_end_matches('\n'), deltas);
                self.enter(State::Content);
                self.at_start = true;
                true
            }
            None => {
                let thought = self.take_decided(&[THINK_END]);
                self.push_reasoning(&thought, deltas);
                false
            }
        }
    }

    fn step_content(&mut self, deltas: &mut Vec<AnswerDelta>) -> bool {
        if self.begins_with_json() {
            let white = self.pending.len() - self.pending.trim_start().len();
            let taken = self.pending.drain(..white).collect();
            self.begin_call(taken, true);
            return true;
        }
        let tags = self.tags();
        let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
        let found = tags.iter().filter_map(|tag| Some((self.pending.find(tag)?, *tag)));
        // Only white space may precede reasoning.
        let allowed = found.filter(|(at, tag)| *tag != THINK || self.pending[..*at].trim().is_empty());
        match allowed.min() {
            Some((at, tag)) => {
                let rest = self.pending.split_off(at + tag.len());
                let text = std::mem::replace(&mut self.pending, rest);
                let text = &text[..at];
                if self.emitted || !text.trim().is_empty() {
                    self.push_content(text.trim_end_matches('\n'), deltas);
                }
                match tag {
                    THINK => self.enter(State::Reasoning),
                    tag => self.begin_call(tag.to_owned(), true),
                }
                true
            }
            None => {
                let text = self.take_decided(&tags);
                self.push_content(&text, deltas);
                // The content just emitted may have ruled out reasoning, and with it a reason to hold text back.
                !text.is_empty()
            }
        }
    }

    /// Tags that may end the content.
    fn tags(&self) -> Vec<String> {
        let mut tags = Vec::new();
        if let Some(offer) = &self.offer {
            let marker = offer.form.marker();
            tags.push(if marker.is_empty() { PYTHON_TAG } else { marker }.to_owned());
        }
        if self.may_reason {
            tags.push(THINK.to_owned());
        }
        tags
    }

    /// Whether the answer begins with JSON that may be a call.
    fn begins_with_json(&self) -> bool {
        let untagged = self.offer.as_ref().is_some_and(|offer| offer.form.marker().is_empty());
        untagged && self.at_start && self.pending.trim_start().starts_with(['{', '['])
    }

    /// Continues with a possible call.
    fn begin_call(&mut self, taken: String, first: bool) {
        self.enter(State::Calling(Calling { taken, first, wait: Waiting::Any, sent: None }));
    }

    fn step_calling(&mut self, done: bool, deltas: &mut Vec<AnswerDelta>) -> bool {
        self.stream_arguments(deltas);
        let (State::Calling(calling), Some(offer)) = (&mut self.state, &self.offer) else { return false };
        if !done && !calling.wait.is_over(&self.pending) {
            return false;
        }
        let sent = calling.sent.as_ref().map(|sent| sent.bytes);
        match offer.read(&self.pending, calling.first, done) {
            CallRead::Call { name, arguments, end } => {
                let more_may_follow = !offer.form.opening.is_empty() || offer.form.marker().is_empty();
                let calls_max = offer.calls_max;
                self.pending.drain(..end);
                match sent {
                    Some(sent) => self.push_arguments(arguments.get(sent..).unwrap_or_default(), deltas),
                    None => self.push_call(name, arguments, deltas),
                }
                self.enter(match (self.calls >= calls_max, more_may_follow) {
                    (true, _) => State::Over,
                    (false, true) => State::Between,
                    (false, false) => State::Content,
                });
                true
            }
            CallRead::Incomplete(wait) if !done => {
                calling.wait = Waiting::on(wait, &self.pending);
                false
            }
            // The answer was cut off in the middle of a call, of which the client knows already.
            CallRead::Incomplete(_) | CallRead::NotACall if sent.is_some() => {
                self.pending.clear();
                self.enter(State::Over);
                false
            }
            CallRead::Incomplete(_) | CallRead::NotACall => {
                let taken = std::mem::take(&mut calling.taken);
                self.enter(State::Content);
                self.after_tag = false;
                self.push_content(&taken, deltas);
                true
            }
        }
    }

    /// Emits what is new in the arguments of a call that a constraint makes certain.
    fn stream_arguments(&mut self, deltas: &mut Vec<AnswerDelta>) {
        let (State::Calling(calling), Some(offer)) = (&mut self.state, &self.offer) else { return };
        if calling.sent.is_none() {
            let Some((name, until)) = offer.begun(&calling.taken, &self.pending) else { return };
            let name = name.to_owned();
            calling.sent = Some(Sent { until, bytes: 0, balance: Balance::default(), complete: false });
            self.push_call(name, String::new(), deltas);
        }
        let State::Calling(Calling { sent: Some(sent), .. }) = &mut self.state else { return };
        if sent.complete {
            return;
        }
        let new = &self.pending[sent.until..];
        let end = sent.balance.feed(new.as_bytes());
        let new = new[..end.unwrap_or(new.len())].to_owned();
        sent.complete = end.is_some();
        sent.until += new.len();
        sent.bytes += new.len();
        self.push_arguments(&new, deltas);
    }

    /// After a call: another one, the end of the section, or content.
    fn step_between(&mut self, done: bool) -> bool {
        let Some(offer) = &self.offer else { return false };
        let is_between = |c: char| c.is_whitespace() || matches!(c, ',' | ';');
        let rest = self.pending.trim_start_matches(is_between);
        let (closing, lead) = (offer.form.closing.trim(), offer.form.lead().trim());
        let lead = if offer.form.object_lead().is_some() && lead.is_empty() { "{" } else { lead };
        let begins = |text: &str| !text.is_empty() && rest.starts_with(text);
        let may_begin = |text: &str| text.starts_with(rest);
        if begins(lead) {
            self.pending = rest.to_owned();
            self.begin_call(String::new(), false);
        } else if begins(closing) {
            self.pending = rest[closing.len()..].to_owned();
            self.enter(State::Content);
        } else if may_begin(lead) || may_begin(closing) {
            if done {
                self.pending.clear();
            }
            return false;
        } else {
            self.enter(State::Content);
        }
        true
    }

    fn push_call(&mut self, name: String, arguments: String, deltas: &mut Vec<AnswerDelta>) {
        let index = self.calls;
        let parts = [&self.salt, "\0", &name].concat();
        let id = format!("call_{index}_{}", &blake3::hash(parts.as_bytes()).to_hex()[..16]);
        deltas.push(AnswerDelta::ToolCall { index, id, name, arguments });
        self.calls += 1;
    }

    /// More arguments of the last call.
    fn push_arguments(&mut self, text: &str, deltas: &mut Vec<AnswerDelta>) {
        let index = self.calls.saturating_sub(1);
        match deltas.last_mut() {
            _ if text.is_empty() => {}
            Some(
                AnswerDelta::Arguments { text: last, .. } | AnswerDelta::ToolCall { arguments: last, .. },
            ) => {
                last.push_str(text);
            }
            _ => deltas.push(AnswerDelta::Arguments { index, text: text.to_owned() }),
        }
    }

    fn enter(&mut self, state: State) {
        self.may_reason &= !matches!(state, State::Calling(_));
        self.state = state;
        self.after_tag = true;
        self.emitted = false;
        self.tagged = true;
        self.at_start = false;
    }

    fn push_reasoning(&mut self, text: &str, deltas: &mut Vec<AnswerDelta>) {
        let text = self.without_breaks_after_tag(text);
        if !text.is_empty() {
            self.emitted = true;
            match deltas.last_mut() {
                Some(AnswerDelta::Reasoning(last)) => last.push_str(text),
                _ => deltas.push(AnswerDelta::Reasoning(text.into())),
            }
        }
    }

    fn push_content(&mut self, text: &str, deltas: &mut Vec<AnswerDelta>) {
        let text = self.without_breaks_after_tag(text);
        if !text.is_empty() {
            self.emitted = true;
            self.may_reason = false;
            self.at_start = false;
            match deltas.last_mut() {
                Some(AnswerDelta::Content(last)) => last.push_str(text),
                _ => deltas.push(AnswerDelta::Content(text.into())),
            }
        }
    }

    fn without_breaks_after_tag<'t>(&mut self, text: &'t str) -> &'t str {
        if !self.after_tag {
            return text;
        }
        let text = text.trim_start_matches('\n');
        self.after_tag = text.is_empty();
        text
    }

    /// Removes and returns the pending text that cannot belong to a tag. White space before a possible tag stays.
    fn take_decided(&mut self, tags: &[&str]) -> String {
        if tags.is_empty() {
            return std::mem::take(&mut self.pending);
        }
        let partial = tags.iter().map(|tag| partial_tag(&self.pending, tag)).max().unwrap_or(0);
        let decided = self.pending[..self.pending.len() - partial].trim_end().len();
        let held = self.pending.split_off(decided);
        std::mem::replace(&mut self.pending, held)
    }
}

/// Length of the longest end of `text` that is a beginning of `tag`.
fn partial_tag(text: &str, tag: &str) -> usize {
    let longest = text.len().min(tag.len() - 1);
    (1..=longest).rev().find(|&len| text.as_bytes().ends_with(&tag.as_bytes()[..len])).unwrap_or(0)
}

impl Waiting {
    fn on(wait: WaitFor, pending: &str) -> Waiting {
        let mut waiting = match wait {
            WaitFor::Any => Waiting::Any,
            WaitFor::Object(searched) => Waiting::Object { balance: Balance::default(), searched },
            WaitFor::Text(text, searched) => Waiting::Text { text, searched },
        };
        let over = waiting.is_over(pending);
        debug_assert!(!over || matches!(waiting, Waiting::Any), "the awaited text has not arrived yet");
        waiting
    }

    /// Whether the call may be complete now. Searches hardly any byte twice.
    fn is_over(&mut self, pending: &str) -> bool {
        match self {
            Waiting::Any => true,
            Waiting::Object { balance, searched } => {
                let end = balance.feed(&pending.as_bytes()[*searched..]);
                *searched = pending.len();
                end.is_some()
            }
            Waiting::Text { text, searched } => {
                let found = pending[*searched..].contains(text.as_str());
                let tail = pending.floor_char_boundary(pending.len().saturating_sub(text.len()));
                *searched = tail.max(*searched);
                found
            }
        }
    }
}

#[cfg(test)]
mod tests;
