//! Lossy shortening of old messages: repeated or long tool outputs, and thoughts.
//!
//! No message is removed and no role or id changes, so every tool call keeps its result. Messages of users and of the
//! system are not changed. The operation is idempotent.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::Value;

/// Limits on old messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lighten {
    /// Maximum characters of a tool's output, including the note about the rest. At least [`TOOL_CHARS_MIN`].
    pub tool_chars: usize,
}

/// Counts of what was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lightened {
    /// Tool outputs that were replaced or shortened.
    pub tool_outputs: usize,
    /// Thoughts that were removed.
    pub thoughts: usize,
    /// Characters by which the messages became shorter.
    pub chars: usize,
}

/// Room for a note with any number: below this limit, the notes themselves would be shortened again.
pub const TOOL_CHARS_MIN: usize = 64;

/// Replacement for an output that a later message repeats.
const REPEATED: &str = "[same as a later result]";
const NOTE_START: &str = "\n[... ";
const NOTE_END: &str = " characters let go ...]\n";

/// Shortens repeated or long tool outputs, and removes the thoughts of assistants.
///
/// A message changes depending on its own content and on later messages of the slice. The order matters: outputs are
/// compared before they are cut, because outputs that differ in the middle may be equal afterwards.
pub fn lighten(messages: &mut [Value], limits: &Lighten) -> Lightened {
    let mut lightened = Lightened::default();
    for index in repeated_outputs(messages) {
        set_output(&mut messages[index], REPEATED.to_owned(), &mut lightened);
    }
    for message in messages {
        match role(message) {
            Some("tool") => shorten_output(message, limits.tool_chars.max(TOOL_CHARS_MIN), &mut lightened),
            Some("assistant") => remove_thoughts(message, &mut lightened),
            _ => {}
        }
    }
    lightened
}

fn role(message: &Value) -> Option<&str> {
    message.get("role")?.as_str()
}

/// Indexes of the tool messages whose output a later one repeats.
fn repeated_outputs(messages: &[Value]) -> Vec<usize> {
    let mut seen = HashSet::new();
    let outputs = messages.iter().enumerate().rev().filter(|(_, message)| role(message) == Some("tool"));
    outputs
        .filter_map(|(index, message)| Some((index, text(message.get("content")?)?)))
        // A note in place of a shorter output would save nothing.
        .filter(|(_, output)| output.chars().nth(REPEATED.len()).is_some() && !is_shortened(output))
        .filter_map(|(index, output)| (!seen.insert(output)).then_some(index))
        .collect()
}

/// True if an output holds a note. Two such outputs may have differed, even if they are equal now.
fn is_shortened(output: &str) -> bool {
    output.contains(NOTE_END)
}

fn shorten_output(message: &mut Value, chars_max: usize, lightened: &mut Lightened) {
    let output = message.get("content").and_then(text);
    if let Some(shorter) = output.and_then(|output| shortened(&output, chars_max)) {
        set_output(message, shorter, lightened);
    }
}

/// The text of a content that consists only of text.
fn text(content: &Value) -> Option<Cow<'_, str>> {
    match content {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Array(parts) => {
            let texts: Option<Vec<&str>> = parts.iter().map(part_text).collect();
            Some(Cow::Owned(texts?.join("\n")))
        }
        _ => None,
    }
}

fn part_text(part: &Value) -> Option<&str> {
    (part.get("type")? == "text").then(|| part.get("text")?.as_str())?
}

/// Shortens a text of more than `chars_max` characters to its start and end, with `chars_max` characters in all, which are
/// at least [`TOOL_CHARS_MIN`].
pub(crate) fn shortened(output: &str, chars_max: usize) -> Option<String> {
    let chars = output.chars().count();
    if chars <= chars_max {
        return None;
    }
    // The number in the note is smaller than `chars`, so it has at most as many digits.
    let kept = chars_max - note(chars).len();
    let start = byte_of_char(output, kept.div_ceil(2));
    let end = byte_of_char(output, chars - kept / 2);
    Some(format!("{}{}{}", &output[..start], note(chars - kept), &output[end..]))
}

fn note(chars: usize) -> String {
    format!("{NOTE_START}{chars}{NOTE_END}")
}

fn byte_of_char(text: &str, index: usize) -> usize {
    text.char_indices().nth(index).map_or(text.len(), |(byte, _)| byte)
}

fn set_output(message: &mut Value, output: String, lightened: &mut Lightened) {
    let Some(content) = message.get_mut("content") else { return };
    lightened.tool_outputs += 1;
    lightened.chars += chars(content) - output.chars().count();
    *content = Value::String(output);
}

/// Characters of a text; of any other value, those of its JSON.
fn chars(value: &Value) -> usize {
    text(value).map_or_else(|| value.to_string().chars().count(), |text| text.chars().count())
}

fn remove_thoughts(message: &mut Value, lightened: &mut Lightened) {
    let Some(fields) = message.as_object_mut() else { return };
    for field in ["reasoning_content", "reasoning"] {
        // `shift_remove` keeps the order of the other fields, which is part of the prompt of some templates.
        if let Some(thought) = fields.shift_remove(field).filter(|thought| !thought.is_null()) {
            lightened.thoughts += 1;
            lightened.chars += chars(&thought);
        }
    }
    let Some(content) = fields.get_mut("content") else { return };
    if let Some(answer) = text(content).and_then(|answer| without_thoughts(&answer, lightened)) {
        *content = Value::String(answer);
    }
}

/// Removes the thoughts at the beginning of an answer. An unterminated thought stays: the answer may be in it.
fn without_thoughts(answer: &str, lightened: &mut Lightened) -> Option<String> {
    let mut rest = answer;
    while let Some((_, after)) =
        rest.trim_start().strip_prefix("<think>").and_then(|t| t.split_once("</think>"))
    {
        lightened.thoughts += 1;
        rest = after.trim_start();
    }
    lightened.chars += answer.chars().count() - rest.chars().count();
    (rest.len() < answer.len()).then(|| rest.to_owned())
}

#[cfg(test)]
mod tests;
