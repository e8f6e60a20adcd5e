//! Arguments as a sequence of keys and values in plain text, with tags around them.
//!
//! White space between tags is ignored, and no tag is ever part of a value: if the tag after a value is missing,
//! the value ends before the next key of the tool, or at the end of the call. The same text always gives the same
//! result, however it continues.

use serde_json::Value;

use super::form::{ArgumentsForm, ToolForm, first_tag, tags_of};
use super::skip::{HEAD_MAX, Skip, skip_ignoring_space};
use super::typed::typed;
use super::waiting::WaitFor;
use crate::kinds::Kinds;

/// The result of parsing arguments.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ParametersRead {
    /// All arguments as a JSON object, and the byte at which the call ends.
    Whole { arguments: String, end: usize },
    /// The text may be a prefix of arguments.
    Incomplete(WaitFor),
    /// The text is not arguments.
    Wrong,
}

type Read<T> = Result<T, ParametersRead>;

const INCOMPLETE: ParametersRead = ParametersRead::Incomplete(WaitFor::Any);

/// Parses the arguments of a call, and the end of the call, from byte `at` on. `schema` is that of the tool,
/// `done` means that no more text follows.
pub(super) fn read_parameters(
    form: &ToolForm,
    schema: Option<&Value>,
    text: &str,
    at: usize,
    done: bool,
) -> ParametersRead {
    let ArgumentsForm::Parameters { key, value, end } = &form.arguments else { return ParametersRead::Wrong };
    let reader = Reader {
        key: key.trim(),
        value: value.trim(),
        end: end.trim(),
        // Line breaks next to a value belong to the form if the template writes them.
        breaks: [value.ends_with('\n'), end.starts_with('\n')],
        call_end: tags_of(&form.end),
        next_call: [&form.end, form.lead()].concat(),
        schema,
        text,
        done,
    };
    reader.read(at).unwrap_or_else(|read| read)
}

struct Reader<'t> {
    key: &'t str,
    value: &'t str,
    end: &'t str,
    breaks: [bool; 2],
    /// The tags that end the call.
    call_end: Vec<&'t str>,
    /// The end of the call and the beginning of another one.
    next_call: String,
    schema: Option<&'t Value>,
    text: &'t str,
    done: bool,
}

/// The element after an argument, and the byte after it.
enum Follows {
    Key(usize),
    End(usize),
}

impl<'t> Reader<'t> {
    fn read(&self, mut at: usize) -> Read<ParametersRead> {
        let mut entries: Vec<(&str, String)> = Vec::new();
        loop {
            match self.follows(at)? {
                Follows::End(end) => {
                    return Ok(ParametersRead::Whole { arguments: object(&entries), end });
                }
                Follows::Key(behind) => {
                    let (name, value_at) = self.name(behind)?;
                    let (until, next) = self.value_end(value_at)?;
                    let value = without_line_breaks(&self.text[value_at..until], self.breaks);
                    let kinds = self.schema.map_or(Kinds::ANY, |schema| Kinds::of_property(schema, name));
                    entries.retain(|(known, _)| *known != name);
                    entries.push((name, typed(value, kinds)));
                    at = next;
                }
            }
        }
    }

    /// Finds the next key, or the end of the call. Some models write a word between them, which is skipped.
    fn follows(&self, at: usize) -> Read<Follows> {
        let rest = &self.text[at..];
        for (offset, _) in rest.char_indices().take_while(|(offset, _)| *offset <= HEAD_MAX) {
            let (here, from) = (&rest[offset..], at + offset);
            let key = skip_ignoring_space(here, self.key);
            let end = self.end_of_call(here);
            match (key, end) {
                (Skip::Past(length), _) => return Ok(Follows::Key(from + length)),
                (Skip::Mismatch, EndRead::Past(length)) => return Ok(Follows::End(from + length)),
                (Skip::Mismatch, EndRead::Mismatch) => {}
                (_, EndRead::Begun) if self.done => return Ok(Follows::End(self.text.len())),
                (_, EndRead::Past(length)) if self.done => return Ok(Follows::End(from + length)),
                _ if self.done => return Err(ParametersRead::Wrong),
                _ => return Err(INCOMPLETE),
            }
        }
        Err(if self.done || rest.len() > HEAD_MAX { ParametersRead::Wrong } else { INCOMPLETE })
    }

    /// Matches the tags that end the call, of which a model may omit some.
    fn end_of_call(&self, text: &str) -> EndRead {
        let mut at = 0;
        for tag in &self.call_end {
            match skip_ignoring_space(&text[at..], tag) {
                Skip::Past(length) => at += length,
                Skip::Incomplete if at > 0 => return EndRead::Begun,
                Skip::Incomplete => return EndRead::Incomplete,
                Skip::Mismatch => {}
            }
        }
        if at > 0 || self.call_end.is_empty() { EndRead::Past(at) } else { EndRead::Mismatch }
    }

    /// The name of a key, and the byte at which its value begins.
    fn name(&self, at: usize) -> Read<(&'t str, usize)> {
        match name_in(&self.text[at..], self.value) {
            Named::Name(name, length) => Ok((name, at + length)),
            Named::Incomplete if !self.done => Err(INCOMPLETE),
            Named::Incomplete | Named::None => Err(ParametersRead::Wrong),
        }
    }

    /// The byte at which a value ends, and the byte at which the following element begins.
    fn value_end(&self, at: usize) -> Read<(usize, usize)> {
        let tag = first_tag(self.end);
        let closed = self.text[at..].find(tag).map(|found| at + found);
        let until = closed.unwrap_or(self.text.len());
        let forgotten = self.forgotten_end(&self.text[at..until]).map(|found| at + found);
        match (forgotten, closed) {
            (Some(end), _) => Ok((end, end)),
            (None, Some(end)) => match skip_ignoring_space(&self.text[end..], self.end) {
                Skip::Past(length) => Ok((end, end + length)),
                Skip::Incomplete if !self.done => Err(INCOMPLETE),
                _ => Ok((end, end + tag.len())),
            },
            (None, None) if !self.done => Err(ParametersRead::Incomplete(WaitFor::Text(tag.into(), at))),
            (None, None) => self.end_of_answer(at).map(|end| (end, end)),
        }
    }

    /// The end of the last value of an answer, if its tag is missing: before the tags of the call, if they
    /// end the answer.
    fn end_of_answer(&self, at: usize) -> Read<usize> {
        let last = self.call_end.first().and_then(|tag| self.text[at..].rfind(tag));
        let last = at + last.ok_or(ParametersRead::Wrong)?;
        let behind = match self.end_of_call(&self.text[last..]) {
            EndRead::Past(length) => &self.text[last + length..],
            _ => "",
        };
        if behind.trim().is_empty() { Ok(last) } else { Err(ParametersRead::Wrong) }
    }

    /// The end of a value whose tag is missing: before a key of the tool, or before another call.
    fn forgotten_end(&self, value: &str) -> Option<usize> {
        let properties = self.schema.and_then(|schema| schema["properties"].as_object());
        let is_key = |text: &str| match skip_ignoring_space(text, self.key) {
            Skip::Past(length) => match name_in(&text[length..], self.value) {
                Named::Name(name, _) => properties.is_some_and(|known| known.contains_key(name)),
                _ => false,
            },
            _ => false,
        };
        let is_next_call = |text: &str| matches!(skip_ignoring_space(text, &self.next_call), Skip::Past(_));
        let mut begins = value.match_indices(['<', '[']).map(|(at, _)| at);
        begins.find(|&at| is_key(&value[at..]) || is_next_call(&value[at..]))
    }
}

enum EndRead {
    Past(usize),
    /// Its first tag was found, and others may follow.
    Begun,
    Incomplete,
    Mismatch,
}

enum Named<'t> {
    /// The name, and the byte after its separator.
    Name(&'t str, usize),
    Incomplete,
    None,
}

/// The name at the beginning of a text, up to the separator before its value. A separator within one tag may be
/// longer than in the template's example (`string="false"`): then it ends with the tag.
fn name_in<'t>(text: &'t str, separator: &str) -> Named<'t> {
    let Some(first) = separator.chars().next() else { return Named::None };
    let Some(length) = text.find(first) else {
        return if text.len() > HEAD_MAX { Named::None } else { Named::Incomplete };
    };
    let name = text[..length].trim().trim_matches('"');
    if length > HEAD_MAX || name.is_empty() || name.contains('\n') {
        return Named::None;
    }
    match skip_ignoring_space(&text[length..], separator) {
        Skip::Past(behind) => Named::Name(name, length + behind),
        Skip::Incomplete => Named::Incomplete,
        Skip::Mismatch if separator.contains('<') => Named::None,
        Skip::Mismatch => match text[length..].find(separator.chars().next_back().unwrap_or(first)) {
            Some(behind) => Named::Name(name, length + behind + 1),
            None => Named::Incomplete,
        },
    }
}

/// Removes one line break at the beginning, or at the end.
fn without_line_breaks(text: &str, [first, last]: [bool; 2]) -> &str {
    let text = text.strip_prefix('\n').filter(|_| first).unwrap_or(text);
    text.strip_suffix('\n').filter(|_| last).unwrap_or(text)
}

/// A JSON object of values that are JSON already.
fn object(entries: &[(&str, String)]) -> String {
    let entry = |(name, value): &(&str, String)| format!("{}:{value}", Value::from(*name));
    format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(","))
}
