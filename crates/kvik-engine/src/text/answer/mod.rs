//! Takes a model's answer apart while it streams: thoughts, tool calls, and what is meant for the reader.
//!
//! The result does not depend on where the text was cut into pieces. Text is held back only while it
//! may turn out to be a tag or a call; nothing is lost: what looks like a call and is none becomes content.
//! Line breaks next to tags belong to the format, not to the text, and are dropped.

mod form;
mod json;
mod read;

use std::sync::Arc;

use json::Balance;
use read::{Read, Wait};

pub use form::{ArgumentsForm, ForcedCall, ToolForm};
pub use read::Offer;

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerDelta {
    /// More of what the model thinks.
    Reasoning(String),
    /// More of what it says.
    Content(String),
    /// A complete call of a tool.
    ToolCall {
        /// Position among the calls of this answer, from 0.
        index: usize,
        /// Name for this call, by which its result is sent back.
        id: String,
        /// The tool.
        name: String,
        /// Its arguments as JSON text, spelled as the model wrote them where it wrote JSON.
        arguments: String,
    },
}

const THINK: &str = "<think>";
const THINK_END: &str = "</think>";
/// Llama 3 may put this before a call that has no tag else.
const PYTHON_TAG: &str = "<|python_tag|>";

/// Parses one answer.
#[derive(Debug)]
pub struct AnswerParser {
    state: State,
    /// Tools that may be called; without them what looks like a call is text.
    offer: Option<Arc<Offer>>,
    /// Goes into the ids of tool calls.
    salt: String,
    /// Text that is not decided yet.
    pending: String,
    /// Line breaks that come next follow a tag and are dropped.
    after_tag: bool,
    /// Something other than white space has been said since the last tag.
    spoken: bool,
    /// A tag was seen: white space at the end is format, not text.
    tagged: bool,
    /// Thoughts come before anything else.
    may_think: bool,
    /// A model whose prompt has opened the thought may open it once more.
    may_reopen: bool,
    /// Nothing has been said yet: a call without a tag may come.
    at_start: bool,
    calls: usize,
}

#[derive(Debug)]
enum State {
    Thinking,
    Speaking,
    /// Inside of what may be a call.
    Calling(Calling),
    /// Behind a call, where another one may come that has no tag of its own.
    Between,
    /// No more calls are wanted, and nothing comes after them.
    Over,
}

/// A call that is not complete.
#[derive(Debug)]
struct Calling {
    /// What was taken for the beginning of it: text again when it is none.
    taken: String,
    /// Not behind another call of the same section.
    first: bool,
    wait: Waiting,
}

/// What an incomplete call waits for, and how far it has been looked for.
#[derive(Debug)]
enum Waiting {
    Any,
    Object { balance: Balance, searched: usize },
    Text { text: String, searched: usize },
}

impl AnswerParser {
    /// `starts_in_thinking` when the prompt ended inside an open thought; `offer` when the request
    /// brought tools, otherwise calls are plain text.
    pub fn new(starts_in_thinking: bool, offer: Option<Arc<Offer>>) -> AnswerParser {
        AnswerParser {
            state: if starts_in_thinking { State::Thinking } else { State::Speaking },
            offer,
            salt: String::new(),
            pending: String::new(),
            after_tag: starts_in_thinking,
            spoken: false,
            tagged: starts_in_thinking,
            may_think: true,
            may_reopen: starts_in_thinking,
            at_start: true,
            calls: 0,
        }
    }

    /// Makes the ids of this answer's tool calls differ from those of other answers.
    pub fn with_salt(mut self, salt: &str) -> AnswerParser {
        self.salt = salt.into();
        self
    }

    /// Takes more text; returns what is decided by it.
    pub fn push(&mut self, text: &str) -> Vec<AnswerDelta> {
        self.pending.push_str(text);
        let mut deltas = Vec::new();
        while self.step(false, &mut deltas) {}
        deltas
    }

    /// The answer is over; returns what was held back.
    pub fn finish(&mut self) -> Vec<AnswerDelta> {
        let mut deltas = Vec::new();
        while self.step(true, &mut deltas) {}
        let rest = std::mem::take(&mut self.pending);
        match self.state {
            State::Thinking => self.think(&rest, &mut deltas),
            State::Speaking if self.tagged && !self.spoken && rest.trim().is_empty() => {}
            State::Speaking => self.speak(&rest, &mut deltas),
            State::Between | State::Over | State::Calling(_) => {}
        }
        deltas
    }

    /// Decides as much of the pending text as can be; `true` when the state has changed. `done` when no
    /// more text comes.
    fn step(&mut self, done: bool, deltas: &mut Vec<AnswerDelta>) -> bool {
        match &self.state {
            State::Thinking => self.step_thinking(deltas),
            State::Speaking => self.step_speaking(deltas),
            State::Calling(_) => self.step_calling(done, deltas),
            State::Between => self.step_between(done),
            State::Over => {
                self.pending.clear();
                false
            }
        }
    }

    fn step_thinking(&mut self, deltas: &mut Vec<AnswerDelta>) -> bool {
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
                self.think(thought[..at].trim_end_matches('\n'), deltas);
                self.enter(State::Speaking);
                self.at_start = true;
                true
            }
            None => {
                let thought = self.take_decided(&[THINK_END]);
                self.think(&thought, deltas);
                false
            }
        }
    }

    fn step_speaking(&mut self, deltas: &mut Vec<AnswerDelta>) -> bool {
        if self.begins_with_json() {
            let white = self.pending.len() - self.pending.trim_start().len();
            let taken = self.pending.drain(..white).collect();
            self.call(taken, true);
            return true;
        }
        let tags = self.tags();
        let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
        let found = tags.iter().filter_map(|tag| Some((self.pending.find(tag)?, *tag)));
        // Only white space may stand before a thought.
        let allowed = found.filter(|(at, tag)| *tag != THINK || self.pending[..*at].trim().is_empty());
        match allowed.min() {
            Some((at, tag)) => {
                let rest = self.pending.split_off(at + tag.len());
                let text = std::mem::replace(&mut self.pending, rest);
                let text = &text[..at];
                if self.spoken || !text.trim().is_empty() {
                    self.speak(text.trim_end_matches('\n'), deltas);
                }
                match tag {
                    THINK => self.enter(State::Thinking),
                    tag => self.call(tag.to_owned(), true),
                }
                true
            }
            None => {
                let text = self.take_decided(&tags);
                self.speak(&text, deltas);
                // What was just said may have ruled out thoughts, and with them what is held back.
                !text.is_empty()
            }
        }
    }

    /// Texts that begin something else than what is said.
    fn tags(&self) -> Vec<String> {
        let mut tags = Vec::new();
        if let Some(offer) = &self.offer {
            let marker = offer.form.marker();
            tags.push(if marker.is_empty() { PYTHON_TAG } else { marker }.to_owned());
        }
        if self.may_think {
            tags.push(THINK.to_owned());
        }
        tags
    }

    /// Whether the answer begins with JSON that may be a call.
    fn begins_with_json(&self) -> bool {
        let untagged = self.offer.as_ref().is_some_and(|offer| offer.form.marker().is_empty());
        untagged && self.at_start && self.pending.trim_start().starts_with(['{', '['])
    }

    /// Goes on with what may be a call.
    fn call(&mut self, taken: String, first: bool) {
        self.enter(State::Calling(Calling { taken, first, wait: Waiting::Any }));
    }

    fn step_calling(&mut self, done: bool, deltas: &mut Vec<AnswerDelta>) -> bool {
        let (State::Calling(calling), Some(offer)) = (&mut self.state, &self.offer) else { return false };
        if !done && !calling.wait.is_over(&self.pending) {
            return false;
        }
        match offer.read(&self.pending, calling.first, done) {
            Read::Call { name, arguments, end } => {
                let more_behind = !offer.form.opening.is_empty() || offer.form.marker().is_empty();
                let over = self.calls + 1 >= offer.calls_max;
                self.pending.drain(..end);
                self.called(name, arguments, deltas);
                self.enter(match (over, more_behind) {
                    (true, _) => State::Over,
                    (false, true) => State::Between,
                    (false, false) => State::Speaking,
                });
                true
            }
            Read::More(wait) if !done => {
                calling.wait = Waiting::on(wait, &self.pending);
                false
            }
            Read::More(_) | Read::No => {
                let taken = std::mem::take(&mut calling.taken);
                self.enter(State::Speaking);
                self.after_tag = false;
                self.speak(&taken, deltas);
                true
            }
        }
    }

    /// Behind a call: another one, the end of the section, or text.
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
            self.call(String::new(), false);
        } else if begins(closing) {
            self.pending = rest[closing.len()..].to_owned();
            self.enter(State::Speaking);
        } else if may_begin(lead) || may_begin(closing) {
            if done {
                self.pending.clear();
            }
            return false;
        } else {
            self.enter(State::Speaking);
        }
        true
    }

    fn called(&mut self, name: String, arguments: String, deltas: &mut Vec<AnswerDelta>) {
        let index = self.calls;
        let parts = [&self.salt, "\0", &name, "\0", &arguments].concat();
        let id = format!("call_{index}_{}", &blake3::hash(parts.as_bytes()).to_hex()[..16]);
        deltas.push(AnswerDelta::ToolCall { index, id, name, arguments });
        self.calls += 1;
    }

    fn enter(&mut self, state: State) {
        self.may_think &= !matches!(state, State::Calling(_));
        self.state = state;
        self.after_tag = true;
        self.spoken = false;
        self.tagged = true;
        self.at_start = false;
    }

    fn think(&mut self, text: &str, deltas: &mut Vec<AnswerDelta>) {
        let text = self.without_breaks_after_tag(text);
        if !text.is_empty() {
            self.spoken = true;
            match deltas.last_mut() {
                Some(AnswerDelta::Reasoning(last)) => last.push_str(text),
                _ => deltas.push(AnswerDelta::Reasoning(text.into())),
            }
        }
    }

    fn speak(&mut self, text: &str, deltas: &mut Vec<AnswerDelta>) {
        let text = self.without_breaks_after_tag(text);
        if !text.is_empty() {
            self.spoken = true;
            self.may_think = false;
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

    /// Takes the pending text that cannot belong to a tag. White space before a possible tag stays.
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

/// Bytes at the end of `text` that are the beginning of `tag`.
fn partial_tag(text: &str, tag: &str) -> usize {
    let longest = text.len().min(tag.len() - 1);
    (1..=longest).rev().find(|&len| text.as_bytes().ends_with(&tag.as_bytes()[..len])).unwrap_or(0)
}

impl Waiting {
    fn on(wait: Wait, pending: &str) -> Waiting {
        let mut waiting = match wait {
            Wait::Any => Waiting::Any,
            Wait::Object(searched) => Waiting::Object { balance: Balance::default(), searched },
            Wait::Text(text, searched) => Waiting::Text { text, searched },
        };
        let over = waiting.is_over(pending);
        debug_assert!(!over || matches!(waiting, Waiting::Any), "what it waits for is not there yet");
        waiting
    }

    /// Whether there may be a call now. Looks at no byte twice, or at few of them.
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
