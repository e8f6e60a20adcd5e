//! Reads one call out of text in which it may not be complete yet.
//!
//! Models keep to the form they were taught in what matters and not in white space, so that is not
//! compared. Whatever the text turns out to be, the same text always gives the same result.

use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::form::{ArgumentsForm, ToolForm};
use super::json::{may_be_call, parse_call, split_value};

/// Tools that an answer may call, and how.
#[derive(Debug, Clone)]
pub struct Offer {
    /// How calls are written.
    pub form: ToolForm,
    /// Names and the schemas of their arguments.
    pub tools: Vec<(String, Value)>,
    /// Calls in one answer at most; what comes after them is dropped.
    pub calls_max: usize,
}

/// Bytes between the beginning of a call and its arguments at most.
const HEAD_MAX: usize = 512;

/// What a text is, read as a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// A call, which ends at this byte.
    Call { name: String, arguments: String, end: usize },
    /// It may be the beginning of one.
    More(Wait),
    /// It is none.
    No,
}

/// What has to come before it is worth reading again.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Anything.
    Any,
    /// The end of the JSON object that begins at this byte.
    Object(usize),
    /// This text, behind this byte.
    Text(String, usize),
}

impl Offer {
    /// Reads a call behind the marker (`first`), or behind another call of the same section.
    /// `done` when no more text comes.
    pub(super) fn read(&self, text: &str, first: bool, done: bool) -> Read {
        let form = &self.form;
        let approach = match first {
            true => form.approach()[form.marker().len()..].to_owned(),
            false => form.lead().to_owned(),
        };
        let start = match skip_loosely(text, &approach) {
            Skip::Past(at) => at,
            Skip::More => return Read::More(Wait::Any),
            Skip::Other => return Read::No,
        };
        match (&form.arguments, form.object_lead()) {
            (ArgumentsForm::Json, Some(_)) => self.read_object(text, start, done),
            (ArgumentsForm::Json, None) => self.read_named(text, start, done),
            (ArgumentsForm::Parameters { .. }, _) => self.read_parameters(text, start, done),
        }
    }

    /// `{"name": .., "arguments": ..}`
    fn read_object(&self, text: &str, start: usize, done: bool) -> Read {
        let start = text.len() - text[start..].trim_start().len();
        let untagged = self.form.marker().is_empty();
        let rest = &text[start..];
        if rest.is_empty() {
            return Read::More(Wait::Any);
        }
        if !rest.starts_with('{') || (untagged && !may_be_call(rest)) {
            return Read::No;
        }
        let Some(length) = object_length(rest) else { return Read::More(object_wait(rest, start, untagged)) };
        let Some((name, arguments)) = parse_call(&rest[..length]) else { return Read::No };
        // Without a tag, JSON is a call only when it names a tool.
        if untagged && !self.tools.iter().any(|(known, _)| *known == name) {
            return Read::No;
        }
        self.read_tail(text, start + length, name, arguments, done)
    }

    /// A name, and JSON behind it.
    fn read_named(&self, text: &str, start: usize, done: bool) -> Read {
        let (name, after) = match self.name_at(text, start) {
            Ok(found) => found,
            Err(read) => return read,
        };
        let Some(found) = text[after..].find('{') else {
            return if text.len() - after > HEAD_MAX { Read::No } else { Read::More(Wait::Any) };
        };
        if found > HEAD_MAX {
            return Read::No;
        }
        let rest = &text[after + found..];
        let Some(length) = object_length(rest) else { return Read::More(Wait::Object(after + found)) };
        if split_value::<IgnoredAny>(rest).is_none_or(|(_, tail)| rest.len() - tail.len() != length) {
            return Read::No;
        }
        self.read_tail(text, after + found + length, name, rest[..length].to_owned(), done)
    }

    /// The name at `start`, and where what comes after it begins.
    fn name_at(&self, text: &str, start: usize) -> Result<(String, usize), Read> {
        let rest = text[start..].trim_start();
        let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
        let Some(length) = rest.find(|c| !is_name(c)) else {
            return Err(if rest.len() > HEAD_MAX { Read::No } else { Read::More(Wait::Any) });
        };
        if length == 0 || length > HEAD_MAX {
            return Err(Read::No);
        }
        Ok((rest[..length].to_owned(), text.len() - rest.len() + length))
    }

    /// A name, and keys and values in text behind it.
    fn read_parameters(&self, text: &str, start: usize, done: bool) -> Read {
        let ArgumentsForm::Parameters { key, value, end } = &self.form.arguments else { return Read::No };
        let (name, after) = match self.name_at(text, start) {
            Ok(found) => found,
            Err(read) => return read,
        };
        let last = first_tag(&self.form.end);
        let mut from = after;
        // Its text may be part of a value: the call ends where all of it stands.
        let (body, at) = loop {
            match text[from..].find(last) {
                None if done => return Read::No,
                None => return Read::More(Wait::Text(last.into(), from)),
                Some(found) => match skip_loosely(&text[from + found..], self.form.end.trim()) {
                    Skip::Past(length) => break (from + found, from + found + length),
                    Skip::More if done => break (from + found, text.len()),
                    Skip::More => return Read::More(Wait::Any),
                    Skip::Other => from += found + last.len(),
                },
            }
        };
        let schema = self.tools.iter().find(|(known, _)| *known == name).map(|(_, schema)| schema);
        let arguments = parameters(&text[after..body], [key, value, end], schema);
        Read::Call { name, arguments: Value::Object(arguments).to_string(), end: at }
    }

    /// What has to stand behind a call.
    fn read_tail(&self, text: &str, at: usize, name: String, arguments: String, done: bool) -> Read {
        match skip_loosely(&text[at..], self.form.tail().trim()) {
            Skip::Past(length) => Read::Call { name, arguments, end: at + length },
            // Some models leave out the last tag.
            Skip::More if done => Read::Call { name, arguments, end: text.len() },
            Skip::More => Read::More(Wait::Any),
            Skip::Other => Read::No,
        }
    }
}

fn object_length(text: &str) -> Option<usize> {
    super::json::Balance::default().feed(text.as_bytes())
}

/// Until its first key is known, an object without a tag may turn out to be text.
fn object_wait(text: &str, start: usize, untagged: bool) -> Wait {
    let key_known = text.bytes().filter(|&byte| byte == b'"').count() >= 2;
    if untagged && !key_known { Wait::Any } else { Wait::Object(start) }
}

/// A tag at the beginning of a text, or all of it.
fn first_tag(text: &str) -> &str {
    let text = text.trim();
    match text.starts_with('<').then(|| text.find('>')).flatten() {
        Some(at) => &text[..=at],
        None => text,
    }
}

enum Skip {
    /// The text is there, up to this byte.
    Past(usize),
    /// It is there as far as the text goes.
    More,
    Other,
}

/// Looks for a text without regard to white space; an opening bracket of a list may be missing.
fn skip_loosely(text: &str, wanted: &str) -> Skip {
    let mut at = 0;
    for c in wanted.chars().filter(|c| !c.is_whitespace()) {
        let rest = text[at..].trim_start();
        match rest.chars().next() {
            None => return Skip::More,
            Some(found) if found == c => at = text.len() - rest.len() + c.len_utf8(),
            Some(_) if c == '[' => {}
            Some(_) => return Skip::Other,
        }
    }
    Skip::Past(at)
}

/// Keys and values between three texts: before a key, before a value, after it.
fn parameters(text: &str, [key, value, end]: [&str; 3], schema: Option<&Value>) -> Map<String, Value> {
    let mut arguments = Map::new();
    let mut rest = text;
    // Line breaks next to a value belong to the form where the template writes them.
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

/// A name and what follows the text before its value. That text may say more than the template's
/// example did (`string="false"`): then it ends where its last character stands.
fn split_name<'t>(text: &'t str, value: &str) -> Option<(&'t str, &'t str)> {
    let name = &text[..text.find(value.chars().next()?)?];
    if let Some(rest) = text[name.len()..].strip_prefix(value) {
        return Some((name, rest));
    }
    let (_, rest) = text[name.len()..].split_once(value.chars().next_back()?)?;
    Some((name, rest))
}

/// Without one line break at the beginning, or at the end.
fn without_line_breaks(text: &str, [first, last]: [bool; 2]) -> &str {
    let text = text.strip_prefix('\n').filter(|_| first).unwrap_or(text);
    text.strip_suffix('\n').filter(|_| last).unwrap_or(text)
}

/// A value as its schema says: text as it is, everything else as JSON where it is that.
fn typed(text: &str, kind: Option<&Value>) -> Value {
    if kind.is_some_and(|kind| kind == "string") {
        return text.into();
    }
    serde_json::from_str(text.trim()).unwrap_or_else(|_| text.into())
}
