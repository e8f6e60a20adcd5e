//! Tests of every pair of keywords, on values that a second, naive reading of each keyword judges.

use serde_json::{Value, json};

use super::super::tests::{accepts_from, compiler};
use super::*;
use crate::forms::Constraint;

/// A keyword, and its naive check of a value.
struct Rule {
    schema: Value,
    allows: fn(&Value) -> bool,
}

fn rule(schema: Value, allows: fn(&Value) -> bool) -> Rule {
    Rule { schema, allows }
}

fn text(value: &Value, allows: impl Fn(&str) -> bool) -> bool {
    value.as_str().is_none_or(allows)
}

fn number(value: &Value, allows: impl Fn(f64) -> bool) -> bool {
    value.as_f64().is_none_or(allows)
}

fn object(value: &Value, allows: impl Fn(&Fields) -> bool) -> bool {
    value.as_object().is_none_or(allows)
}

fn array(value: &Value, allows: impl Fn(&[Value]) -> bool) -> bool {
    value.as_array().is_none_or(|items| allows(items))
}

fn rules() -> Vec<Rule> {
    vec![
        rule(json!({"type": "string"}), Value::is_string),
        rule(json!({"type": ["integer", "object"]}), |value| {
            value.is_object() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
        }),
        rule(json!({"minLength": 2}), |value| text(value, |text| text.chars().count() >= 2)),
        rule(json!({"maxLength": 2}), |value| text(value, |text| text.chars().count() <= 2)),
        rule(json!({"pattern": "^[a-z]+$"}), |value| {
            text(value, |text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase()))
        }),
        rule(json!({"pattern": "b"}), |value| text(value, |text| text.contains('b'))),
        rule(json!({"format": "date"}), |value| text(value, |text| text == "2024-02-29")),
        rule(json!({"minimum": 2}), |value| number(value, |number| number >= 2.0)),
        rule(json!({"exclusiveMaximum": 4}), |value| number(value, |number| number < 4.0)),
        rule(json!({"multipleOf": 2}), |value| number(value, |number| number % 2.0 == 0.0)),
        rule(json!({"required": ["a"]}), |value| object(value, |fields| fields.contains_key("a"))),
        rule(json!({"properties": {"a": {"type": "integer"}}}), |value| {
            object(value, |fields| fields.get("a").is_none_or(|a| a.is_i64()))
        }),
        rule(json!({"maxProperties": 1}), |value| object(value, |fields| fields.len() <= 1)),
        rule(json!({"minItems": 2}), |value| array(value, |items| items.len() >= 2)),
        rule(json!({"items": {"type": "integer"}}), |value| {
            array(value, |items| items.iter().all(Value::is_i64))
        }),
        rule(json!({"uniqueItems": true}), |value| {
            array(value, |items| (1..items.len()).all(|at| !items[..at].contains(&items[at])))
        }),
        rule(json!({"const": "bb"}), |value| value == "bb"),
        rule(json!({"enum": ["bb", 4, 2.0, {"a": 1}, [1, 2]]}), |value| {
            [json!("bb"), json!(4), json!(2), json!({"a": 1}), json!([1, 2])].contains(value)
        }),
        rule(json!({"anyOf": [{"type": "string"}, {"minimum": 3}]}), |value| {
            value.is_string() || number(value, |number| number >= 3.0)
        }),
        rule(json!({"oneOf": [{"type": "integer"}, {"maximum": 2}]}), |value| {
            value.is_i64() != number(value, |number| number <= 2.0)
        }),
        rule(json!({"not": {"const": "ab"}}), |value| value != "ab"),
        rule(json!({"if": {"type": "string"}, "then": {"maxLength": 2}}), |value| {
            text(value, |text| text.chars().count() <= 2)
        }),
    ]
}

fn values() -> Vec<Value> {
    vec![
        json!("a"),
        json!("ab"),
        json!("bb"),
        json!("abb"),
        json!("B1"),
        json!("2024-02-29"),
        json!("2024-02-30"),
        json!(1),
        json!(2),
        json!(3),
        json!(4),
        json!(2.5),
        json!(null),
        json!({}),
        json!({"a": 1}),
        json!({"a": "x"}),
        json!({"a": 1, "b": 2}),
        json!([]),
        json!([1]),
        json!([1, 2]),
        json!([1, 1]),
        json!(["x", 1]),
    ]
}

/// Two rules combined, in every way to express it. Equal keywords cannot be siblings.
fn both(first: &Value, second: &Value) -> Vec<Value> {
    let mut merged = first.as_object().unwrap().clone();
    let names = second.as_object().unwrap();
    let mut ways = vec![
        json!({"allOf": [first, second]}),
        json!({"$ref": "#/$defs/50%25", "allOf": [second], "$defs": {"50%": first}}),
    ];
    if !names.keys().any(|key| merged.contains_key(key)) {
        merged.extend(names.clone());
        ways.push(Value::Object(merged));
    }
    ways
}

/// Listed values are exactly those that two sibling keywords allow.
#[test]
fn listed_values_are_those_that_every_keyword_beside_them_allows() {
    let (rules, values) = (rules(), values());
    for (at, first) in rules.iter().enumerate() {
        for second in &rules[at..] {
            let expect: Vec<&Value> =
                values.iter().filter(|value| (first.allows)(value) && (second.allows)(value)).collect();
            for way in both(&first.schema, &second.schema) {
                let definitions = way.get("$defs").cloned().unwrap_or_default();
                let listed = json!({"allOf": [{"enum": values}, way], "$defs": definitions});
                match normalise(&listed, Strictness::Lenient) {
                    Err(error) => {
                        assert!(error.excludes_all, "{way}: {error}");
                        assert!(expect.is_empty(), "{way} allows {expect:?}: {error}");
                    }
                    Ok(normal) => {
                        let kept = normal.schema["enum"].as_array().cloned();
                        let kept = kept.unwrap_or_else(|| vec![normal.schema["const"].clone()]);
                        let is_exact = kept.iter().collect::<Vec<_>>() == expect;
                        // A keyword that cannot be applied is noted, and would only exclude more.
                        let covers = expect.iter().all(|value| kept.contains(value));
                        assert!(
                            is_exact || (covers && !normal.notes.is_empty()),
                            "{way}: {kept:?} for {expect:?}"
                        );
                    }
                }
            }
        }
    }
}

/// An answer satisfies both keywords, or a note says which of them is not enforced.
#[test]
fn answers_satisfy_every_keyword_that_no_note_names() {
    let (rules, values, compiler) = (rules(), values(), compiler());
    for (at, first) in rules.iter().enumerate() {
        for second in &rules[at + 1..] {
            for way in both(&first.schema, &second.schema) {
                let Ok(normal) = normalise(&way, Strictness::Lenient) else { continue };
                if !normal.notes.is_empty() {
                    continue;
                }
                let constraint = Constraint::JsonSchema(way.clone());
                let Ok(guide) = compiler.compile(&constraint) else { continue };
                for value in &values {
                    let allowed = (first.allows)(value) && (second.allows)(value);
                    let accepted = accepts_from(guide.fork(), &value.to_string());
                    assert!(allowed || !accepted, "{way} accepts {value}");
                }
            }
        }
    }
}
