//! Characters in every spelling, in every string of a schema.

use serde_json::{Value, json};

use super::super::tests::{accepts, accepts_from, compiler};
use super::spelling::tests::spellings;
use crate::forms::{ArgumentsForm, CallForm, CallStart, Calls, Constraint};

/// A schema, the JSON around a character in a string of it, and the allowed characters.
type Case = (Value, &'static str, &'static str, fn(char) -> bool);

fn cases() -> Vec<Case> {
    let any: fn(char) -> bool = |_| true;
    let of_line: fn(char) -> bool = |c| c != '\n';
    vec![
        (json!({}), "[\"", "\"]", any),
        (json!({"type": "string"}), "\"", "\"", any),
        (json!({"type": "string", "minLength": 2, "maxLength": 2}), "\"\\u0061", "\"", any),
        (json!({"type": "string", "pattern": "^[^x]$"}), "\"", "\"", |c| c != 'x'),
        (json!({"type": "string", "pattern": "^.+é?$", "maxLength": 1}), "\"", "\"", of_line),
        (json!({"type": "string", "pattern": "/"}), "\"\\/", "\"", any),
        (json!({"type": "string", "pattern": "^[\u{1f600}-\u{1f64f}]$"}), "\"", "\"", |c| {
            ('\u{1f600}'..='\u{1f64f}').contains(&c)
        }),
        (json!({"type": "object"}), "{\"", "\":1}", any),
        (json!({"type": "object"}), "{\"k\":\"", "\"}", any),
        (json!({"type": "array", "items": {"type": ["string", "null"]}}), "[null,\"", "\"]", any),
        (json!({"anyOf": [{"type": "string"}, {"type": "integer"}]}), "\"", "\"", any),
        (json!({"properties": {"a": {"type": "string"}}}), "{\"a\": \"", "\"}", any),
        (
            json!({"properties": {"a": {}}, "additionalProperties": {"type": "string"}}),
            "{\"b",
            "\":\"\"}",
            any,
        ),
        (json!({"patternProperties": {"^k.$": {"type": "integer"}}}), "{\"k", "\":1}", of_line),
        (
            json!({"$ref": "#/$defs/t", "$defs": {"t": {"type": "string", "pattern": "^a?.$"}}}),
            "\"a",
            "\"",
            of_line,
        ),
    ]
}

fn characters() -> Vec<char> {
    let special = [
        '"',
        '\\',
        '/',
        '\n',
        '\u{0}',
        '\u{1f}',
        '\u{7f}',
        'x',
        'é',
        '\u{d7ff}',
        '\u{e000}',
        '\u{ffff}',
        '\u{10000}',
        '😀',
        char::MAX,
    ];
    ('\0'..=char::MAX).step_by(39_119).chain(special).collect()
}

#[test]
fn a_character_may_have_every_spelling_under_every_schema() {
    let compiler = compiler();
    for (schema, before, after, allows) in cases() {
        let guide = compiler.compile(&Constraint::JsonSchema(schema.clone())).unwrap();
        for c in characters() {
            for spelling in spellings(c) {
                let text = [before, &spelling, after].concat();
                serde_json::from_str::<Value>(&text).unwrap();
                assert_eq!(accepts_from(guide.fork(), &text), allows(c), "{schema}: {text}");
            }
        }
        for half in ["\\ud83d", "\\ude00", "\\ud83d\\u0041", "\\u00e", "\\x41", "\\'"] {
            let text = [before, half, after].concat();
            assert!(!accepts_from(guide.fork(), &text), "{schema}: {text}");
        }
    }
}

/// Strings that a schema lists accept every spelling too, except of printable ASCII characters, which no model
/// escapes: so forced text is known in advance.
#[test]
fn listed_texts_and_names_may_have_every_spelling() {
    let compiler = compiler();
    for c in characters() {
        let name = format!("a{c}b");
        let is_plain = (' '..='~').contains(&c) && !['"', '\\', '/'].contains(&c);
        for (schema, before, after) in [
            (json!({"const": name}), "\"a", "b\""),
            (json!({"enum": [name, "other"]}), "\"a", "b\""),
            (json!({"properties": {name.clone(): {}}, "required": [name]}), "{\"a", "b\":1}"),
            (json!({"const": {name.clone(): [name]}}), "{\"a", &format!("b\":[{}]}}", json!(name))),
        ] {
            let guide = compiler.compile(&Constraint::JsonSchema(schema.clone())).unwrap();
            for spelling in spellings(c) {
                let text = [before, &spelling, after].concat();
                let expect = !is_plain || spelling == c.to_string();
                assert_eq!(accepts_from(guide.fork(), &text), expect, "{schema}: {text}");
            }
        }
    }
}

#[test]
fn arguments_of_calls_may_have_every_spelling() {
    let schema =
        json!({"type": "object", "properties": {"größe": {"type": "string"}}, "required": ["größe"]});
    for (arguments, before, after) in [
        (ArgumentsForm::Json, "f{\"gr\\u00f6\\u00dfe\": \"", "\"}!"),
        (ArgumentsForm::Python, "f(größe=\"", "\")!"),
    ] {
        let constraint = Constraint::Calls(Calls {
            start: CallStart::Forced { after: None, instead: None },
            tools: vec![CallForm { begin: "f".into(), arguments, schema: schema.clone(), end: "!".into() }],
            opening: String::new(),
            separator: String::new(),
            closing: String::new(),
            calls_max: 1,
            reasoning: None,
        });
        let guide = compiler().compile(&constraint).unwrap();
        for spelling in characters().into_iter().flat_map(spellings) {
            let text = [before, &spelling, after].concat();
            assert!(accepts_from(guide.fork(), &text), "{text}");
        }
    }
}

/// An open bound excludes itself, whatever the other bound is, and a bound may be of any size.
#[test]
fn numbers_are_within_their_bounds() {
    let compiler = compiler();
    let check = |schema: Value, allowed: &[&str]| {
        let guide = compiler.compile(&Constraint::JsonSchema(schema.clone())).unwrap();
        for text in ["0", "0.1", "0.5", "-1", "7"] {
            assert_eq!(accepts_from(guide.fork(), text), allowed.contains(&text), "{schema}: {text}");
        }
    };
    check(json!({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}), &["0.1", "0.5"]);
    check(json!({"type": "number", "minimum": -1, "exclusiveMaximum": 0}), &["-1"]);
    check(json!({"type": "number", "minimum": 0, "maximum": f64::MAX}), &["0", "0.1", "0.5", "7"]);
    check(json!({"type": "integer", "minimum": i64::MIN}), &["0", "-1", "7"]);
    check(json!({"type": ["integer", "null"], "exclusiveMinimum": -1, "maximum": u64::MAX}), &["0", "7"]);
    let none = json!({"properties": {"a": {"type": "integer", "minimum": 1.2, "maximum": 1.8}}});
    assert!(accepts(&Constraint::JsonSchema(none), "{}"));
}

/// Beside a divisor an open bound excludes itself too, however near the other bound is.
#[test]
fn multiples_are_within_their_bounds() {
    let compiler = compiler();
    for (divisor, bounds, allowed, refused) in [
        (0.1, json!({"exclusiveMinimum": 0, "maximum": 0.5}), ["0.1", "0.5"], ["0", "0.0", "0.6"]),
        (0.3, json!({"exclusiveMinimum": 1, "maximum": 1.9}), ["1.2", "1.8"], ["1", "1.0", "1.3"]),
    ] {
        let mut schema = bounds;
        schema["multipleOf"] = json!(divisor);
        let guide = compiler.compile(&Constraint::JsonSchema(schema.clone())).unwrap();
        for (texts, expect) in [(&allowed[..], true), (&refused[..], false)] {
            for text in texts {
                assert_eq!(accepts_from(guide.fork(), text), expect, "{schema}: {text}");
            }
        }
    }
    let none = json!({"properties": {"a": {"exclusiveMinimum": 0, "maximum": 0.5, "multipleOf": 2}}});
    assert!(accepts(&Constraint::JsonSchema(none), "{}"));
}

/// Comparison with llguidance's own translation: texts without escapes are accepted by both or by neither.
#[test]
fn structure_is_that_of_llguidance() {
    let schemas = [
        json!({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}),
        json!({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}], "items": false}),
        json!({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "null"}, "minItems": 2}),
        json!({"type": "array", "maxItems": 0}),
        json!({"properties": {"a": {"type": "integer"}, "b": {"type": "null"}}, "required": ["b"]}),
        json!({"properties": {"a": {"type": "integer"}, "b": {"type": "null"}}}),
        json!({"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "null"}}),
        json!({"properties": {"a": {}}, "required": ["a", "b"], "additionalProperties": {"type": "null"}}),
        json!({"properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "minProperties": 1, "maxProperties": 1}),
        json!({"properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "minProperties": 1}),
        json!({"additionalProperties": {"type": "null"}, "minProperties": 1, "maxProperties": 2}),
        json!({"patternProperties": {"^a": {"type": "integer"}}, "properties": {"ab": {"type": "integer", "minimum": 2}}}),
        json!({"enum": [1, null, "a", [1, "x"], {"a": 1, "b": []}, true]}),
        json!({"type": ["integer", "null", "boolean"], "minimum": 2}),
        json!({"type": "number", "minimum": 0.5, "maximum": 2}),
        json!({"type": "integer", "multipleOf": 2}),
        json!({"$ref": "#/$defs/n", "$defs": {"n": {"properties": {"a": {"$ref": "#/$defs/n"}}}}}),
        json!({"anyOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]}, {"type": "null"}]}),
    ];
    let texts = [
        "1",
        "2",
        "3",
        "0.5",
        "1.5",
        "2.5",
        "-2",
        "null",
        "true",
        "\"a\"",
        "[]",
        "[1]",
        "[1,2]",
        "[1, null]",
        "[1,null,null]",
        "[1,\"x\"]",
        "[1,2,3]",
        "{}",
        "{\"a\":1}",
        "{\"a\":null}",
        "{\"b\":null}",
        "{\"a\":1,\"b\":null}",
        "{\"b\":null,\"a\":1}",
        "{\"a\":null,\"b\":null}",
        "{\"a\":1,\"c\":null}",
        "{\"c\":null,\"d\":null}",
        "{\"c\":null,\"d\":null,\"e\":null}",
        "{\"ab\":1}",
        "{\"ab\":2}",
        "{\"ab\":2,\"ac\":1}",
        "{\"a\":{\"a\":{}}}",
        "{\"a\":1,\"b\":[]}",
        "{ \"a\": 1 }",
        "{  \"a\":1}",
    ];
    let compiler = compiler();
    for schema in schemas {
        let own = compiler.compile(&Constraint::JsonSchema(schema.clone())).unwrap();
        let mut read = schema.clone();
        read["x-guidance"] = json!({"whitespace_pattern": super::JSON_WHITE_SPACE});
        let theirs = compiler.compile(&Constraint::JsonSchema(read)).unwrap();
        for text in texts {
            assert_eq!(accepts_from(own.fork(), text), accepts_from(theirs.fork(), text), "{schema}: {text}");
        }
    }
    assert!(accepts(&Constraint::JsonObject, "{\"a\":[1,{\"b\":null}]}"));
}
