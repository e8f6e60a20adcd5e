//! JSON in an answer that is still being generated.

use std::collections::BTreeMap;

use serde::de::{DeserializeOwned, IgnoredAny};

/// Finds the end of a JSON object incrementally.
#[derive(Debug, Clone, Default)]
pub(super) struct Balance {
    depth: usize,
    /// The quotation mark of the string that the current byte is in.
    text: Option<u8>,
    escaped: bool,
    /// Whether parentheses count as brackets, and apostrophes as quotation marks.
    python: bool,
}

impl Balance {
    /// Finds the end of a function call in Python's notation.
    pub(super) fn of_python() -> Balance {
        Balance { python: true, ..Balance::default() }
    }

    /// Adds text; returns the part of it that belongs to the object, and whether the object ends there.
    pub(super) fn part_of<'t>(&mut self, text: &'t str) -> (&'t str, bool) {
        let end = self.feed(text.as_bytes());
        (&text[..end.unwrap_or(text.len())], end.is_some())
    }

    /// Adds bytes; returns how many of them lead up to the end of the object, if it is reached.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Option<usize> {
        for (at, byte) in bytes.iter().enumerate() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.text.is_some() => self.escaped = true,
                _ if self.text == Some(*byte) => self.text = None,
                _ if self.text.is_some() => {}
                b'"' => self.text = Some(*byte),
                b'\'' if self.python => self.text = Some(*byte),
                b'{' | b'[' => self.depth += 1,
                b'(' if self.python => self.depth += 1,
                b')' if !self.python => {}
                b'}' | b']' | b')' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(at + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

/// Name and arguments of `{"name": ..., "arguments": {...}}`.
///
/// The arguments are a slice of the text, not parsed and serialised again: as part of the next prompt
/// they must give the same tokens, or the cache cannot reuse them.
pub(super) fn parse_call(text: &str) -> Option<(String, String)> {
    let (mut name, mut arguments) = (None, "{}");
    let mut rest = text.trim().strip_prefix('{')?.trim_start();
    while !rest.starts_with('}') {
        let (key, after_key) = split_value::<String>(rest)?;
        let value_text = after_key.trim_start().strip_prefix(':')?.trim_start();
        let (_, after_value) = split_value::<IgnoredAny>(value_text)?;
        let value = &value_text[..value_text.len() - after_value.len()];
        match key.as_str() {
            "name" | "tool_name" => name = Some(serde_json::from_str(value).ok()?),
            // Llama 3 uses `parameters`; `function` is an object with name and arguments, or the name alone.
            "arguments" | "parameters" => arguments = value,
            "function" if value.starts_with('{') => return parse_call(value),
            "function" => name = Some(serde_json::from_str(value).ok()?),
            _ => {}
        }
        rest = after_value.trim_start();
        match rest.strip_prefix(',') {
            Some(next) => rest = Some(next.trim_start()).filter(|next| next.starts_with('"'))?,
            None if rest == "}" => {}
            None => return None,
        }
    }
    (rest == "}").then_some(())?;
    Some((name?, arguments_text(arguments)?))
}

/// [`parse_call`] for an object with exactly the two fields.
pub(super) fn parse_exact_call(text: &str) -> Option<(String, String)> {
    let fields: BTreeMap<String, IgnoredAny> = serde_json::from_str(text).ok()?;
    let has_arguments = ["arguments", "parameters"].iter().any(|key| fields.contains_key(*key));
    (fields.len() == 2 && fields.contains_key("name") && has_arguments).then(|| parse_call(text)).flatten()
}

/// The first JSON value of `text`, and what follows it.
pub(super) fn split_value<T: DeserializeOwned>(text: &str) -> Option<(T, &str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter();
    let value = values.next()?.ok()?;
    Some((value, &text[values.byte_offset()..]))
}

fn arguments_text(value: &str) -> Option<String> {
    match value {
        "null" => Some("{}".into()),
        object if object.starts_with('{') => Some(object.into()),
        // Some models write the arguments as a string of JSON.
        text => serde_json::from_str(text).ok(),
    }
}

/// Keys that a call without a tag begins with.
const FIRST_KEYS: [&str; 6] = ["name", "type", "function", "parameters", "arguments", "id"];

/// Whether `text` can still become a call, judged by its first key.
pub(super) fn may_be_call(text: &str) -> bool {
    let Some(inside) = text.strip_prefix('{') else { return text.is_empty() };
    let inside = inside.trim_start();
    let Some(key) = inside.strip_prefix('"') else { return inside.is_empty() };
    match key.split_once('"') {
        Some((key, _)) => FIRST_KEYS.contains(&key),
        None => FIRST_KEYS.iter().any(|known| known.starts_with(key)),
    }
}
