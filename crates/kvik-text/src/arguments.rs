//! Arguments of a call as JSON text, which may be incomplete: an answer is cut off at its maximum length.

use std::borrow::Cow;

use serde::de::{DeserializeOwned, IgnoredAny};

/// Returns the object of the complete arguments in an incomplete text of an object, written as in the text:
/// `{"a": "x", "b": "y` gives `{"a": "x"}`. `None` for a text that does not begin an object.
///
/// A number at the end of the text is not complete, since more digits may follow.
pub fn complete_arguments(text: &str) -> Option<String> {
    let start = text.find(|c: char| !c.is_whitespace())?;
    let mut rest = text[start..].strip_prefix('{')?;
    let mut end = text.len() - rest.len();
    while let Some(after) = after_member(rest) {
        end = text.len() - after.len();
        let Some(next) = after.trim_start().strip_prefix(',') else { break };
        rest = next;
    }
    Some(format!("{}}}", &text[start..end]))
}

/// Replaces each lone surrogate escape by `\\ufffd`. A model may write one, and a client that cuts a text between two units
/// of UTF-16; it represents no character, and parsers refuse it.
pub fn whole_surrogates(text: &str) -> Cow<'_, str> {
    if !text.contains("\\u") {
        return text.into();
    }
    let (mut whole, mut copied, mut at) = (String::new(), 0, 0);
    while let Some(found) = text[at..].find('\\') {
        let start = at + found;
        let escape = &text[start..];
        at = start
            + match (surrogate(escape), escape.get(6..).and_then(surrogate)) {
                (Some(0xd800..0xdc00), Some(0xdc00..0xe000)) => 12,
                (Some(_), _) => {
                    whole.push_str(&text[copied..start]);
                    whole.push_str("\\ufffd");
                    copied = start + 6;
                    6
                }
                // A backslash and the character that it escapes.
                (None, _) => escape.chars().take(2).map(char::len_utf8).sum(),
            };
    }
    if copied == 0 {
        return text.into();
    }
    whole.push_str(&text[copied..]);
    whole.into()
}

/// The surrogate whose escape begins the text.
fn surrogate(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let unit = is_hex.then(|| u16::from_str_radix(digits, 16).ok()).flatten()?;
    (0xd800..0xe000).contains(&unit).then_some(unit)
}

/// The text after the object member with which `text` begins.
fn after_member(text: &str) -> Option<&str> {
    let value = after_value::<String>(text)?.trim_start().strip_prefix(':')?.trim_start();
    let after = after_value::<IgnoredAny>(value)?;
    let number = value.starts_with(|c: char| c == '-' || c.is_ascii_digit());
    (!number || !after.is_empty()).then_some(after)
}

/// The text after the JSON value with which `text` begins.
fn after_value<T: DeserializeOwned>(text: &str) -> Option<&str> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<T>();
    values.next()?.ok()?;
    Some(&text[values.byte_offset()..])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::*;

    #[test]
    fn arguments_that_are_complete_are_kept() {
        let check = |text: &str, expect: Option<&str>| {
            assert_eq!(complete_arguments(text).as_deref(), expect, "{text}");
        };
        for nothing in [
            "{",
            " {",
            "{\"",
            "{\"ci",
            "{\"city\"",
            "{\"city\":",
            "{\"city\": \"Os",
            "{\"n\": 1",
            "{\"n\": -",
        ] {
            check(nothing, Some("{}"));
        }
        check("{\"city\": \"Oslo\"", Some("{\"city\": \"Oslo\"}"));
        check("{\"city\": \"Oslo\", ", Some("{\"city\": \"Oslo\"}"));
        check("{ \"n\": 1, \"m\": 2", Some("{ \"n\": 1}"));
        check("{\"n\": 1 ", Some("{\"n\": 1}"));
        check("{\"a\": true, \"b\": nul", Some("{\"a\": true}"));
        check(
            "{\"a\": \"}\\\",\", \"b\": [1, {\"c\": 2}], \"d\": {\"e\": 1",
            Some("{\"a\": \"}\\\",\", \"b\": [1, {\"c\": 2}]}"),
        );
        check("{\"a\": \"\\ud83d", Some("{}"));
        for other in ["", "  ", "[1, 2", "\"a", "weather"] {
            check(other, None);
        }
    }

    #[test]
    fn lone_surrogates_are_replaced() {
        for (text, expect) in [
            (r#"{"a": "\ud83d\ude00 \u00e9 \\ud83d"}"#, r#"{"a": "\ud83d\ude00 \u00e9 \\ud83d"}"#),
            (r#"{"a": "\ud83d"}"#, r#"{"a": "\ufffd"}"#),
            (r#"{"a": "\uDE00\ud83d"}"#, r#"{"a": "\ufffd\ufffd"}"#),
            (r#"{"a": "\ud83d\u0041"}"#, r#"{"a": "\ufffd\u0041"}"#),
            (r#"{"a": "\ud83d\ud83d\ude00é\"#, r#"{"a": "\ufffd\ud83d\ude00é\"#),
            (r"\u12", r"\u12"),
        ] {
            assert_eq!(whole_surrogates(text), expect, "{text}");
        }
    }

    /// JSON values with a little nesting.
    fn value() -> impl Strategy<Value = Value> {
        let scalar = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,6}".prop_map(Value::from),
        ];
        scalar.prop_recursive(2, 8, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::vec((".{0,3}", inner), 0..3)
                    .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// If an object is cut at any byte, its first members remain unchanged.
        #[test]
        fn every_cut_keeps_the_first_members(
            members in prop::collection::vec((".{0,4}", value()), 0..4),
            at in 0.0..1.0f64,
        ) {
            let whole: Map<String, Value> = members.into_iter().collect();
            let text = json!(whole).to_string();
            let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).skip(1).collect();
            let end = ends[((ends.len() as f64 * at) as usize).min(ends.len() - 1)];
            let kept = complete_arguments(&text[..end]).unwrap();
            let kept: Map<String, Value> = serde_json::from_str(&kept).unwrap();
            prop_assert!(kept.iter().eq(whole.iter().take(kept.len())), "{kept:?} of {text}");
        }

        /// Strings with any escapes can be parsed.
        #[test]
        fn strings_without_lone_surrogates_are_read(
            parts in prop::collection::vec(r#"\\u[dD][89abcdefCD][0-9a-f]{2}|\\\\|\\"|é|\\u00e9|u"#, 0..8),
        ) {
            let text = format!("\"{}\"", parts.concat());
            let read = serde_json::from_str::<Value>(&whole_surrogates(&text));
            prop_assert!(read.is_ok(), "{text}: {read:?}");
        }
    }
}
