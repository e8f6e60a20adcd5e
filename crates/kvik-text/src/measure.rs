//! Sizes of values as text, without the text.

use std::io;

use serde::Serialize;

/// Bytes of a value as JSON without white space; 0 if it cannot be JSON.
pub fn json_bytes(value: &(impl Serialize + ?Sized)) -> usize {
    let mut written = Written::default();
    serde_json::to_writer(&mut written, value).map_or(0, |()| written.bytes)
}

/// Counts what is written to it.
#[derive(Default)]
struct Written {
    bytes: usize,
}

impl io::Write for Written {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.bytes += text.len();
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_has_the_bytes_of_its_text() {
        for value in [
            json!(null),
            json!("é\n\"\u{1}"),
            json!([1, -2.5, 1e300, true, {}]),
            json!({"a": [], "ключ": {"b": "🦙"}}),
        ] {
            assert_eq!(json_bytes(&value), value.to_string().len(), "{value}");
        }
        assert_eq!(json_bytes(&[json!(1), json!("a")][..]), r#"[1,"a"]"#.len());
    }
}
