//! Reads one call from text in which it may be incomplete.
//!
//! Models keep to the form they were trained on except for white space, which is not compared. The same
//! text always gives the same result.

use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::form::{ArgumentsForm, ToolForm};
use super::json::{Balance, may_be_call, parse_call, split_value};
use super::values::{Unread, dict, python_arguments};

/// Tools that an answer may call, and the form of the calls.
#[derive(Debug, Clone)]
pub struct Offer {
    /// The form of the calls.
    pub form: ToolForm,
    /// Names and the schemas of their arguments.
    pub tools: Vec<(String, Value)>,
    /// Maximum calls in one answer; text after them is dropped.
    pub calls_max: usize,
    /// A constraint holds the answer to the form, so that what begins as a call is one.
    pub certain: bool,
}

/// Maximum bytes between the beginning of a call and its arguments.
const HEAD_MAX: usize = 512;

/// The result of reading text as a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CallRead {
    /// A call, which ends at byte `end`.
    Call { name: String, arguments: String, end: usize },
    /// The text may be the beginning of a call.
    Incomplete(WaitFor),
    /// The text is not a call.
    NotACall,
}

/// The text that must arrive before the call can be complete.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WaitFor {
    /// Anything.
    Any,
    /// The end of the JSON object that begins at this byte.
    Object(usize),
    /// The end of the call in Python's notation whose arguments begin at this byte.
    Group(usize),
    /// This text, after this byte.
    Text(String, usize),
}

impl Offer {
    /// The tool that a certain call is of, and the byte of `text` at which its arguments begin, once both are there.
    /// `taken` is what was removed before `text` as the beginning of the call.
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

    /// Reads a call after the marker (`first`), or after another call of the same section.
    /// `done` if no more text follows.
    pub(super) fn read(&self, text: &str, first: bool, done: bool) -> CallRead {
        let form = &self.form;
        let approach = match first {
            true => form.approach()[form.marker().len()..].to_owned(),
            false => form.lead().to_owned(),
        };
        let start = match skip_ignoring_space(text, &approach) {
            Skip::Past(at) => at,
            Skip::Incomplete => return CallRead::Incomplete(WaitFor::Any),
            Skip::Mismatch => return CallRead::NotACall,
        };
        match (&form.arguments, form.object_lead()) {
            (ArgumentsForm::Json, Some(_)) => self.read_object(text, start, done),
            (ArgumentsForm::Json, None) => self.read_named(text, start, done),
            (ArgumentsForm::Parameters { .. }, _) => self.read_parameters(text, start, done),
            (ArgumentsForm::Python, _) => self.read_python(text, start, done),
            (ArgumentsForm::Dict { quote }, _) => self.read_dict(text, start, quote, done),
        }
    }

    /// `{"name": .., "arguments": ..}`
    fn read_object(&self, text: &str, start: usize, done: bool) -> CallRead {
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
        if !self.may_be_called(&name) {
            return CallRead::NotACall;
        }
        self.read_tail(text, start + length, name, arguments, done)
    }

    /// A name, and JSON after it.
    fn read_named(&self, text: &str, start: usize, done: bool) -> CallRead {
        let (name, after) = match self.name_at(text, start) {
            Ok(found) => found,
            Err(read) => return read,
        };
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

    /// A name, and keys and values as text after it.
    fn read_parameters(&self, text: &str, start: usize, done: bool) -> CallRead {
        let ArgumentsForm::Parameters { key, value, end } = &self.form.arguments else {
            return CallRead::NotACall;
        };
        let (name, after) = match self.name_at(text, start) {
            Ok(found) => found,
            Err(read) => return read,
        };
        let last = first_tag(&self.form.end);
        let mut from = after;
        // A value may contain the first tag of the end: the call ends where the whole end follows.
        let (body, at) = loop {
            match text[from..].find(last) {
                None if done => return CallRead::NotACall,
                None => return CallRead::Incomplete(WaitFor::Text(last.into(), from)),
                Some(found) => match skip_ignoring_space(&text[from + found..], self.form.end.trim()) {
                    Skip::Past(length) => break (from + found, from + found + length),
                    Skip::Incomplete if done => break (from + found, text.len()),
                    Skip::Incomplete => return CallRead::Incomplete(WaitFor::Any),
                    Skip::Mismatch => from += found + last.len(),
                },
            }
        };
        let schema = self.tools.iter().find(|(known, _)| *known == name).map(|(_, schema)| schema);
        let arguments = parameters(&text[after..body], [key, value, end], schema);
        CallRead::Call { name, arguments: Value::Object(arguments).to_string(), end: at }
    }

    /// A name, and arguments in parentheses after it.
    fn read_python(&self, text: &str, start: usize, done: bool) -> CallRead {
        let (name, after) = match self.name_at(text, start) {
            Ok(found) => found,
            Err(read) => return read,
        };
        if !text[after..].starts_with('(') || !self.may_be_called(&name) {
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

    /// A name, and an object in Gemma's notation after it.
    fn read_dict(&self, text: &str, start: usize, quote: &str, done: bool) -> CallRead {
        let (name, after) = match self.name_at(text, start) {
            Ok(found) => found,
            Err(read) => return read,
        };
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

    /// Whether a call of this tool is one: without a tag it has to name a tool.
    fn may_be_called(&self, name: &str) -> bool {
        !self.form.marker().is_empty() || self.tools.iter().any(|(known, _)| known == name)
    }

    /// Reads the text that must follow a call.
    fn read_tail(&self, text: &str, at: usize, name: String, arguments: String, done: bool) -> CallRead {
        match skip_ignoring_space(&text[at..], self.form.tail().trim()) {
            Skip::Past(length) => CallRead::Call { name, arguments, end: at + length },
            // Some models leave out the last tag.
            Skip::Incomplete if done => CallRead::Call { name, arguments, end: text.len() },
            Skip::Incomplete => CallRead::Incomplete(WaitFor::Any),
            Skip::Mismatch => CallRead::NotACall,
        }
    }
}

fn object_length(text: &str) -> Option<usize> {
    Balance::default().feed(text.as_bytes())
}

/// Until its first key is known, an object without a tag may turn out to be content.
fn object_wait(text: &str, start: usize, untagged: bool) -> WaitFor {
    let key_known = text.bytes().filter(|&byte| byte == b'"').count() >= 2;
    if untagged && !key_known { WaitFor::Any } else { WaitFor::Object(start) }
}

/// The tag at the beginning of a text, or the whole text.
fn first_tag(text: &str) -> &str {
    let text = text.trim();
    match text.starts_with('<').then(|| text.find('>')).flatten() {
        Some(at) => &text[..=at],
        None => text,
    }
}

/// The result of matching a text against an expected one.
enum Skip {
    /// It matches up to this byte.
    Past(usize),
    /// It matches up to its end, where the expected text continues.
    Incomplete,
    Mismatch,
}

/// Matches a text ignoring white space; an opening bracket of a list may be missing.
fn skip_ignoring_space(text: &str, wanted: &str) -> Skip {
    let mut at = 0;
    for c in wanted.chars().filter(|c| !c.is_whitespace()) {
        let rest = text[at..].trim_start();
        match rest.chars().next() {
            None => return Skip::Incomplete,
            Some(found) if found == c => at = text.len() - rest.len() + c.len_utf8(),
            Some(_) if c == '[' => {}
            Some(_) => return Skip::Mismatch,
        }
    }
    Skip::Past(at)
}

/// Keys and values between three texts: before a key, before a value, after it.
fn parameters(text: &str, [key, value, end]: [&str; 3], schema: Option<&Value>) -> Map<String, Value> {
    let mut arguments = Map::new();
    let mut rest = text;
    // Line breaks next to a value belong to the form if the template writes them.
    let breaks = [value.ends_with('\n'), end.starts_with('\n')];
    while let Some((_, after_key)) = rest.split_once(key.trim()) {
        let Some((name, after_value)) = split_name(after_key, value.trim()) else { break };
        let (text, after) = after_value.split_once(end.trim()).unwrap_or((after_value, ""));
        let name = name.trim();
        let kind = schema.map(|schema| &schema["properties"][name]["type"]);
        arguments.insert(name.to_owned(), typed(without_line_breaks(text, breaks), kind));
        rest = after;
    }
    arguments
}

/// A name and the text after the separator before its value. The separator may be longer than in the
/// template's example (`string="false"`): then it ends at its last character.
fn split_name<'t>(text: &'t str, value: &str) -> Option<(&'t str, &'t str)> {
    let name = &text[..text.find(value.chars().next()?)?];
    if let Some(rest) = text[name.len()..].strip_prefix(value) {
        return Some((name, rest));
    }
    let (_, rest) = text[name.len()..].split_once(value.chars().next_back()?)?;
    Some((name, rest))
}

/// Removes one line break at the beginning, or at the end.
fn without_line_breaks(text: &str, [first, last]: [bool; 2]) -> &str {
    let text = text.strip_prefix('\n').filter(|_| first).unwrap_or(text);
    text.strip_suffix('\n').filter(|_| last).unwrap_or(text)
}

/// A value by its schema: a string as it is, any other type as JSON if it parses.
fn typed(text: &str, kind: Option<&Value>) -> Value {
    if kind.is_some_and(|kind| kind == "string") {
        return text.into();
    }
    serde_json::from_str(text.trim()).unwrap_or_else(|_| text.into())
}
