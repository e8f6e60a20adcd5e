//! The white space of JSON: which spaces a writer puts between the parts.
//!
//! A client that parses the arguments of a call and sends them back has lost the model's white space. If calls are
//! generated with the spaces that the chat template writes into its prompts, the prompt repeats the generated tokens.

/// The spaces that a writer of JSON puts between its parts, on one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JsonSpaces {
    /// Whether one stands behind a comma.
    pub comma: bool,
    /// Whether one stands behind the colon of an entry.
    pub colon: bool,
}

impl JsonSpaces {
    /// Those of Python and of Jinja's `tojson`, which most models were trained on.
    pub const USUAL: JsonSpaces = JsonSpaces { comma: true, colon: true };

    /// The spaces of a text with a comma and a colon; `None` if a writer of any other kind wrote it.
    pub(crate) fn of(json: &str) -> Option<JsonSpaces> {
        let all = [(true, true), (false, false), (false, true), (true, false)];
        let all = all.map(|(comma, colon)| JsonSpaces { comma, colon });
        all.into_iter().find(|spaces| spaces.write(json) == json)
    }

    /// JSON with these spaces and no other white space, and otherwise unchanged.
    pub(crate) fn write(self, json: &str) -> String {
        let mut written = String::with_capacity(json.len());
        let (mut in_string, mut is_escaped) = (false, false);
        for c in json.chars() {
            if in_string {
                written.push(c);
                in_string = c != '"' || is_escaped;
                is_escaped = c == '\\' && !is_escaped;
                continue;
            }
            match c {
                ' ' | '\n' | '\r' | '\t' => {}
                ',' => written.push_str(self.comma()),
                ':' => written.push_str(self.colon()),
                other => {
                    in_string = other == '"';
                    written.push(other);
                }
            }
        }
        written
    }

    /// A comma with what follows it.
    pub(crate) fn comma(self) -> &'static str {
        if self.comma { ", " } else { "," }
    }

    /// A colon with what follows it.
    pub(crate) fn colon(self) -> &'static str {
        if self.colon { ": " } else { ":" }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_spaces_of_a_writer_are_found() {
        let spaces = |text: &str| JsonSpaces::of(text).map(|spaces| (spaces.comma, spaces.colon));
        assert_eq!(spaces(r#"{"a": 1, "b": [1, 2]}"#), Some((true, true)));
        assert_eq!(spaces(r#"{"a":1,"b":[1,2]}"#), Some((false, false)));
        assert_eq!(spaces(r#"{"a": 1,"b": [1,2]}"#), Some((false, true)));
        assert_eq!(spaces("{\n  \"a\": 1,\n  \"b\": 2\n}"), None);
        assert_eq!(spaces(r#"{ "a": 1, "b": 2 }"#), None);
    }

    #[test]
    fn strings_stay_as_they_are() {
        let text = r#"{"a, b:c \" , \\":[ "x ,\t:" , -1.50e+3,{ }]}"#;
        assert_eq!(JsonSpaces::USUAL.write(text), r#"{"a, b:c \" , \\": ["x ,\t:", -1.50e+3, {}]}"#);
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![any::<i32>().prop_map(Value::from), "[ -~]{0,6}".prop_map(Value::from)];
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[ -~]{0,4}", inner, 0..3).prop_map(|map| json!(map)),
            ]
        })
    }

    proptest! {
        /// However it was written, the same value is written alike.
        #[test]
        fn the_same_value_is_written_alike(value in value(), comma: bool, colon: bool) {
            let spaces = JsonSpaces { comma, colon };
            let written = spaces.write(&value.to_string());
            prop_assert_eq!(&spaces.write(&serde_json::to_string_pretty(&value).unwrap()), &written);
            prop_assert_eq!(serde_json::from_str::<Value>(&written).unwrap(), value);
        }
    }
}
