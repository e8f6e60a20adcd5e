//! Parses one call from text that may be incomplete.
//!
//! Models follow their trained form except for white space, which is ignored. The same text always gives the
//! same result.

use std::sync::Arc;

use serde::de::IgnoredAny;
use serde_json::Value;

use super::form::{ArgumentsForm, ToolForm, first_tag};
use super::json::{Balance, may_be_call, parse_call, parse_exact_call, split_value};
use super::parameters::{ParametersRead, read_parameters};
use super::skip::{HEAD_MAX, Skip, skip_ignoring_space};
use super::values::{Unread, dict, python_arguments};
use super::waiting::WaitFor;

/// Tools that an answer may call, and the form of the calls.
#[derive(Debug, Clone)]
pub struct Offer {
    /// The form of the calls.
    pub form: ToolForm,
    /// Names and the schemas of their arguments.
    pub tools: Vec<(String, Value)>,
    /// Maximum calls in one answer; text after them is dropped.
    pub calls_max: usize,
    /// Whether a constraint enforces the form, so that text that begins like a call is one.
    pub certain: bool,
}

/// Text around a call in a fenced code block, in any model's form.
pub(super) const FENCE: &str = "```json";
const FENCE_END: &str = "```";

/// The beginning of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beginning {
    /// The marker of the form.
    Marker,
    /// The beginning of a later call of a section.
    Next,
    /// A later tag of the form, up to this byte of the text before a call: the tags before it were omitted.
    Later(usize),
    /// JSON, although the form has other text before it.
    Json,
    /// A fenced code block of JSON.
    Fence,
}

impl Beginning {
    /// Whether the beginning is one of the form itself.
    pub(super) fn is_formal(self) -> bool {
        matches!(self, Beginning::Marker | Beginning::Next)
    }
}

/// The result of parsing text as a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CallRead {
    /// A call, which ends at byte `end`.
    Call { name: String, arguments: String, end: usize },
    /// The text may be the beginning of a call.
    Incomplete(WaitFor),
    /// The text is not a call.
    NotACall,
}

impl Offer {
    /// Withdraws that a constraint enforces the form.
    pub(super) fn unconstrain(offer: &mut Option<Arc<Offer>>) {
        if let Some(offer) = offer {
            Arc::make_mut(offer).certain = false;
        }
    }

    /// The tool of a certain call, and the byte of `text` at which its arguments begin, once both are present.
    /// `taken` is the beginning of the call that was removed before `text`.
    pub(super) fn begun(&self, taken: &str, text: &str) -> Option<(&str, usize)> {
        if !self.certain || self.form.arguments != ArgumentsForm::Json {
            return None;
        }
        let opening = self.form.opening.strip_prefix(taken).map(|rest| [rest, &self.form.begin].concat());
        let begin = self.form.begin.strip_prefix(taken).map(str::to_owned);
        let beginnings = [opening, begin];
        let rest = beginnings.iter().flatten().find_map(|begin| text.strip_prefix(begin.as_str()))?;
        let (name, arguments) = self.tools.iter().find_map(|(name, _)| {
            Some((name, rest.strip_prefix(name.as_str())?.strip_prefix(self.form.middle.as_str())?))
        })?;
        arguments.starts_with('{').then(|| (name.as_str(), text.len() - arguments.len()))
    }

    /// Parses a call after its beginning. `done` if no more text follows.
    pub(super) fn read(&self, text: &str, beginning: Beginning, done: bool) -> CallRead {
        let form = &self.form;
        // Some models write JSON although their form has keys and values.
        let has_parameters = matches!(form.arguments, ArgumentsForm::Parameters { .. });
        if has_parameters && beginning == Beginning::Marker && text.trim_start().starts_with('{') {
            return self.read_exact(text, form.closing_tags().last().unwrap_or(&""), done);
        }
        let approach = match beginning {
            Beginning::Marker => form.approach()[form.marker().len()..].to_owned(),
            Beginning::Next => form.lead().to_owned(),
            Beginning::Later(behind) => form.approach()[behind..].to_owned(),
            Beginning::Json => return self.read_exact(text, "", done),
            Beginning::Fence => return self.read_exact(text, FENCE_END, done),
        };
        let start = match skip_ignoring_space(text, &approach) {
            Skip::Past(at) => at,
            Skip::Incomplete => return CallRead::Incomplete(WaitFor::Any),
            Skip::Mismatch => return CallRead::NotACall,
        };
        match (&form.arguments, form.object_lead()) {
            (ArgumentsForm::Json, Some(_)) => self.read_object(text, start, beginning, done),
            (ArgumentsForm::Json, None) => self.read_named(text, start, beginning, done),
            (ArgumentsForm::Parameters { .. }, _) => self.read_parameters(text, start, beginning, done),
            (ArgumentsForm::Python, _) => self.read_python(text, start, beginning, done),
            (ArgumentsForm::Dict { quote }, _) => self.read_dict(text, start, quote, beginning, done),
        }
    }

    /// Parses an object with exactly the name of a tool and arguments, followed by `close`.
    fn read_exact(&self, text: &str, close: &str, done: bool) -> CallRead {
        let start = text.len() - text.trim_start().len();
        let rest = &text[start..];
        if !may_be_call(rest) {
            return CallRead::NotACall;
        }
        let Some(length) = object_length(rest) else {
            return CallRead::Incomplete(object_wait(rest, start, true));
        };
        let call = parse_exact_call(&rest[..length]).filter(|(name, _)| self.is_offered(name));
        match call {
            Some((name, arguments)) => read_close(text, start + length, close, name, arguments, done),
            None => CallRead::NotACall,
        }
    }

    /// `{"name": .., "arguments": ..}`
    fn read_object(&self, text: &str, start: usize, beginning: Beginning, done: bool) -> CallRead {
        let start = text.len() - text[start..].trim_start().len();
        let untagged = self.form.marker().is_empty();
        let rest = &text[start..];
        if rest.is_empty() {
            return CallRead::Incomplete(WaitFor::Any);
        }
        if !rest.starts_with('{') || (untagged && !may_be_call(rest)) {
            return CallRead::NotACall;
        }
        let Some(length) = object_length(rest) else {
            return CallRead::Incomplete(object_wait(rest, start, untagged));
        };
        let Some((name, arguments)) = parse_call(&rest[..length]) else { return CallRead::NotACall };
        if !self.may_be_called(&name, beginning) {
            return CallRead::NotACall;
        }
        self.read_tail(text, start + length, name, arguments, done)
    }

    /// Parses a name followed by JSON.
    fn read_named(&self, text: &str, start: usize, beginning: Beginning, done: bool) -> CallRead {
        let (name, after) = match self.name_at(text, start) {
            Ok(found) => found,
            Err(read) => return read,
        };
        if !self.may_be_called(&name, beginning) {
            return CallRead::NotACall;
        }
        let Some(found) = text[after..].find('{') else {
            return if text.len() - after > HEAD_MAX {
                CallRead::NotACall
            } else {
                CallRead::Incomplete(WaitFor::Any)
            };
        };
        if found > HEAD_MAX {
            return CallRead::NotACall;
        }
        let rest = &text[after + found..];
        let Some(length) = object_length(rest) else {
            return CallRead::Incomplete(WaitFor::Object(after + found));
        };
        if split_value::<IgnoredAny>(rest).is_none_or(|(_, tail)| rest.len() - tail.len() != length) {
            return CallRead::NotACall;
        }
        self.read_tail(text, after + found + length, name, rest[..length].to_owned(), done)
    }

    /// The name at `start`, and the byte after it.
    fn name_at(&self, text: &str, start: usize) -> Result<(String, usize), CallRead> {
        let rest = text[start..].trim_start();
        let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
        let Some(length) = rest.find(|c| !is_name(c)) else {
            return Err(if rest.len() > HEAD_MAX {
                CallRead::NotACall
            } else {
                CallRead::Incomplete(WaitFor::Any)
            });
        };
        if length == 0 || length > HEAD_MAX {
            return Err(CallRead::NotACall);
        }
        Ok((rest[..length].to_owned(), text.len() - rest.len() + length))
    }

    /// Parses a name followed by keys and values as text.
    fn read_parameters(&self, text: &str, start: usize, beginning: Beginning, done: bool) -> CallRead {
        let (name, after) = match self.name_at(text, start) {
            Ok(found) => found,
            Err(read) => return read,
        };
        if !self.may_be_called(&name, beginning) {
            return CallRead::NotACall;
        }
        let schema = self.tools.iter().find(|(known, _)| *known == name).map(|(_, schema)| schema);
        match read_parameters(&self.form, schema, text, after, done) {
            ParametersRead::Whole { arguments, end } => CallRead::Call { name, arguments, end },
            ParametersRead::Incomplete(wait) => CallRead::Incomplete(wait),
            ParametersRead::Wrong => CallRead::NotACall,
        }
    }

    /// Parses a name followed by arguments in parentheses.
    fn read_python(&self, text: &str, start: usize, beginning: Beginning, done: bool) -> CallRead {
        let (name, after) = match self.name_at(text, start) {
            Ok(found) => found,
            Err(read) => return read,
        };
        if !text[after..].starts_with('(') || !self.may_be_called(&name, beginning) {
            return CallRead::NotACall;
        }
        let Some(length) = Balance::of_python().feed(&text.as_bytes()[after..]) else {
            return CallRead::Incomplete(WaitFor::Group(after));
        };
        match python_arguments(&text[after..after + length]) {
            Ok((arguments, read)) if read == length => {
                self.read_tail(text, after + length, name, arguments, done)
            }
            _ => CallRead::NotACall,
        }
    }

    /// Parses a name followed by an object in Gemma's notation.
    fn read_dict(&self, text: &str, start: usize, quote: &str, beginning: Beginning, done: bool) -> CallRead {
        let (name, after) = match self.name_at(text, start) {
            Ok(found) => found,
            Err(read) => return read,
        };
        if !self.may_be_called(&name, beginning) {
            return CallRead::NotACall;
        }
        match dict(&text[after..], quote) {
            Ok((arguments, read)) => self.read_tail(text, after + read, name, arguments, done),
            Err(Unread::Incomplete) => {
                let end = self.form.end.as_str();
                let searched = text[after..].rfind(end).map_or(after, |at| after + at + end.len());
                CallRead::Incomplete(WaitFor::Text(end.into(), searched))
            }
            Err(Unread::Wrong) => CallRead::NotACall,
        }
    }

    /// Whether this name is accepted: without the marker of the form it has to be that of an offered tool.
    fn may_be_called(&self, name: &str, beginning: Beginning) -> bool {
        (beginning.is_formal() && !self.form.marker().is_empty()) || self.is_offered(name)
    }

    /// Whether a tool of this name is offered.
    pub(super) fn is_offered(&self, name: &str) -> bool {
        self.tools.iter().any(|(known, _)| known == name)
    }

    /// Parses the text that must follow a call. If it is missing, another call may follow.
    fn read_tail(&self, text: &str, at: usize, name: String, arguments: String, done: bool) -> CallRead {
        let tail = self.form.tail().trim();
        let next =
            if self.form.opening.is_empty() { self.form.marker() } else { first_tag(self.form.lead()) };
        let rest = text[at..].trim_start();
        if next.starts_with('<') && !tail.is_empty() && self.is_offered(&name) {
            if rest.starts_with(next) {
                return CallRead::Call { name, arguments, end: text.len() - rest.len() };
            }
            if !done && next.starts_with(rest) {
                return CallRead::Incomplete(WaitFor::Any);
            }
        }
        read_close(text, at, tail, name, arguments, done)
    }
}

/// Parses the end of a call.
fn read_close(text: &str, at: usize, close: &str, name: String, arguments: String, done: bool) -> CallRead {
    match skip_ignoring_space(&text[at..], close) {
        Skip::Past(length) => CallRead::Call { name, arguments, end: at + length },
        // Some models omit the last tag.
        Skip::Incomplete if done => CallRead::Call { name, arguments, end: text.len() },
        Skip::Incomplete => CallRead::Incomplete(WaitFor::Any),
        Skip::Mismatch => CallRead::NotACall,
    }
}

fn object_length(text: &str) -> Option<usize> {
    Balance::default().feed(text.as_bytes())
}

/// An object without a tag may be content: this is known once its first key is complete.
fn object_wait(text: &str, start: usize, untagged: bool) -> WaitFor {
    let key_known = text.bytes().filter(|&byte| byte == b'"').count() >= 2;
    if untagged && !key_known { WaitFor::Any } else { WaitFor::Object(start) }
}
