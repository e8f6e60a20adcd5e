//! Arguments of calls that a dialect has as values, as the text that models are told.

use std::io;

use serde::Serialize;
use serde_json::{Value, ser::Formatter};

/// The text of a value as templates and models write it, with a space behind `,` and `:`. So a call that comes back as a
/// value has the tokens with which it was generated, and those of a dialect that sends its text.
pub(crate) fn arguments_text(arguments: &Value) -> String {
    let mut text = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, Spaced);
    // Writing into memory does not fail.
    match arguments.serialize(&mut serializer) {
        Ok(()) => String::from_utf8(text).unwrap_or_else(|_| arguments.to_string()),
        Err(_) => arguments.to_string(),
    }
}

/// Python's `json.dumps`, which trains models.
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
    fn values_are_written_as_python_writes_them() {
        let value = json!({"a": [1, 2.5, "x, y: z"], "b": {"c": null}, "d": {}, "e": []});
        assert_eq!(
            arguments_text(&value),
            r#"{"a": [1, 2.5, "x, y: z"], "b": {"c": null}, "d": {}, "e": []}"#
        );
    }
}
