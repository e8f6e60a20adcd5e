//! Conversion of arguments in plain text to JSON of a type that their schema allows.
//!
//! JSON is copied verbatim, so that no digit of a number is lost.

use serde_json::Value;

use super::values::python_literal;
use crate::kinds::Kinds;

/// An argument as JSON. Text that fits no other type is a string.
pub(super) fn typed(text: &str, kinds: Kinds) -> String {
    let as_text = || Value::from(text).to_string();
    let may_be_text = kinds.allows(Kinds::STRING);
    let word = text.trim();
    match (serde_json::from_str::<Value>(word), kinds) {
        // Quotation marks are part of a string whose type is known: the form has none of its own.
        (Ok(Value::String(_)), kinds) if may_be_text && kinds != Kinds::ANY => as_text(),
        (Ok(_), kinds) if kinds.allows(Kinds::of_json(word)) || !may_be_text => word.to_owned(),
        (Err(_), kinds) if !may_be_text => {
            let literal = python_literal(word).filter(|json| kinds.allows(Kinds::of_json(json)));
            literal.unwrap_or_else(as_text)
        }
        _ => as_text(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_has_a_type_of_its_schema() {
        let text_or = |kinds: Kinds| Kinds::STRING.or(kinds);
        let number = Kinds::INTEGER.or(Kinds::FRACTION);
        for (text, kinds, expect) in [
            ("3", Kinds::STRING, r#""3""#),
            ("true", Kinds::STRING, r#""true""#),
            (" 3\n", Kinds::STRING, r#"" 3\n""#),
            ("\"3\"", Kinds::STRING, r#""\"3\"""#),
            ("3", text_or(Kinds::NULL), r#""3""#),
            ("null", text_or(Kinds::NULL), "null"),
            ("None", text_or(Kinds::NULL), r#""None""#),
            ("\"x\"", text_or(Kinds::NULL), r#""\"x\"""#),
            ("3", text_or(Kinds::INTEGER), "3"),
            ("3.5", text_or(Kinds::INTEGER), r#""3.5""#),
            ("[1]", text_or(Kinds::INTEGER), r#""[1]""#),
            ("[1]", text_or(Kinds::ARRAY), "[1]"),
            (" 3\n", Kinds::INTEGER, "3"),
            ("3.0", Kinds::INTEGER, "3.0"),
            ("123456789012345678901234567890", Kinds::INTEGER, "123456789012345678901234567890"),
            ("0.1000000000000000055511151231257827", number, "0.1000000000000000055511151231257827"),
            ("{\"n\": 18446744073709551616}", Kinds::OBJECT, "{\"n\": 18446744073709551616}"),
            ("True", Kinds::BOOLEAN, "true"),
            ("False", Kinds::BOOLEAN, "false"),
            ("None", Kinds::INTEGER.or(Kinds::NULL), "null"),
            ("None", Kinds::INTEGER, r#""None""#),
            ("{'a': [1, None], 'b': True}", Kinds::OBJECT, r#"{"a": [1, null], "b": true}"#),
            ("yes", Kinds::BOOLEAN, r#""yes""#),
            ("\"3\"", Kinds::INTEGER, r#""3""#),
            ("3", Kinds::ANY, "3"),
            ("\"3\"", Kinds::ANY, r#""3""#),
            ("True", Kinds::ANY, r#""True""#),
            ("some text", Kinds::ANY, r#""some text""#),
            ("", Kinds::ANY, r#""""#),
        ] {
            assert_eq!(typed(text, kinds), expect, "{text:?} as {kinds:?}");
        }
    }
}
