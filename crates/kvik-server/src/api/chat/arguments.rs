//! Tool call arguments in dialects that represent them as JSON values: conversion to the text that models
//! see, and back.

use std::io;

use kvik_text::arguments::{complete_arguments, whole_surrogates};
use serde::Serialize;
use serde_json::{Map, Value, ser::Formatter};

/// Serialises a value with a space after `,` and `:`, as templates and models do. A call that comes back as a
/// value then has the same tokens as when it was generated, and the same as in a dialect that sends its text.
pub(crate) fn arguments_text(arguments: &Value) -> String {
    let mut text = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, Spaced);
    // Writing to memory cannot fail.
    match arguments.serialize(&mut serializer) {
        Ok(()) => String::from_utf8(text).unwrap_or_else(|_| arguments.to_string()),
        Err(_) => arguments.to_string(),
    }
}

/// Parses arguments from a text; if the call was cut off, returns the complete ones.
pub(crate) fn arguments_object(text: &str) -> Map<String, Value> {
    let text: &str = &whole_surrogates(text);
    let whole = serde_json::from_str(text).ok();
    let complete = || serde_json::from_str(&complete_arguments(text)?).ok();
    whole.or_else(complete).unwrap_or_default()
}

/// Formats JSON like Python's `json.dumps`, with which training data is written.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: io::Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: io::Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_call_that_was_cut_off_keeps_its_complete_arguments() {
        let whole = r#"{"city": "Oslo", "days": [1, {"a": "}"}], "n": 25, "ok": true}"#;
        let object = |text: &str| Value::Object(arguments_object(text));
        assert_eq!(object(whole), serde_json::from_str::<Value>(whole).unwrap());
        for (end, _) in whole.char_indices() {
            let kept = arguments_object(&whole[..end]);
            assert!(kept.iter().eq(arguments_object(whole).iter().take(kept.len())), "{}", &whole[..end]);
        }
        assert_eq!(object(r#"{"city": "Oslo", "days": [1, {"a"#), json!({"city": "Oslo"}));
        assert_eq!(object("{"), json!({}));
        assert_eq!(object(r#"{"a": "\ud83d"}"#), json!({"a": "\u{fffd}"}));
        assert_eq!(object("weather"), json!({}));
    }

    #[test]
    fn values_are_written_as_python_writes_them() {
        let value = json!({"a": [1, 2.5, "x, y: z"], "b": {"c": null}, "d": {}, "e": []});
        assert_eq!(
            arguments_text(&value),
            r#"{"a": [1, 2.5, "x, y: z"], "b": {"c": null}, "d": {}, "e": []}"#
        );
    }
}
