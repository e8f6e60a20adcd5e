//! Tests of every keyword, every pair of them, and every pair beside `required`, on values that a second, naive reading of
//! each keyword judges.

use serde_json::{Value, json};

use super::super::Compiler;
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
        required(),
        rule(json!({"properties": {"a": {"type": "integer"}}}), |value| {
            object(value, |fields| fields.get("a").is_none_or(|a| a.is_i64()))
        }),
        rule(json!({"properties": {"b": {"type": "integer"}}}), |value| {
            object(value, |fields| fields.get("b").is_none_or(Value::is_i64))
        }),
        closed_by("additionalProperties"),
        closed_by("unevaluatedProperties"),
        rule(json!({"additionalProperties": {"type": "integer"}}), |value| {
            object(value, |fields| fields.values().all(Value::is_i64))
        }),
        rule(json!({"patternProperties": {"^b": {"type": "string"}}}), |value| {
            object(value, |fields| {
                fields.iter().all(|(name, value)| !name.starts_with('b') || value.is_string())
            })
        }),
        rule(json!({"minProperties": 2}), |value| object(value, |fields| fields.len() >= 2)),
        rule(json!({"maxProperties": 1}), |value| object(value, |fields| fields.len() <= 1)),
        rule(json!({"minItems": 2}), |value| array(value, |items| items.len() >= 2)),
        rule(json!({"prefixItems": [{"type": "integer"}, {"type": "string"}]}), |value| {
            array(value, |items| {
                items.first().is_none_or(Value::is_i64) && items.get(1).is_none_or(Value::is_string)
            })
        }),
        rule(json!({"prefixItems": [{"type": "integer"}], "items": {"type": "string"}}), |value| {
            array(value, |items| {
                items.first().is_none_or(Value::is_i64) && items.iter().skip(1).all(Value::is_string)
            })
        }),
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

fn closed_by(keyword: &str) -> Rule {
    rule(json!({"properties": {"a": {}}, (keyword): false}), |value| {
        object(value, |fields| fields.keys().all(|name| name == "a"))
    })
}

fn required() -> Rule {
    rule(json!({"required": ["a"]}), |value| object(value, |fields| fields.contains_key("a")))
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
        json!({"b": 1}),
        json!({"b": "x"}),
        json!({"a": 1, "b": 2}),
        json!({"a": 1, "b": "x"}),
        json!([]),
        json!([1]),
        json!([1, 2]),
        json!([1, 1]),
        json!(["x", 1]),
        json!([1, "x"]),
    ]
}

/// Keywords of which some apply to what the others do not name, if they are siblings.
const RELATED: [&[&str]; 2] = [
    &["properties", "patternProperties", "additionalProperties", "unevaluatedProperties"],
    &["prefixItems", "items"],
];

/// Two rules combined, in every way to express it. Equal keywords cannot be siblings, and related ones say something else
/// as siblings.
fn both(first: &Value, second: &Value) -> Vec<Value> {
    let (first_names, names) = (first.as_object().unwrap(), second.as_object().unwrap());
    let mut ways = vec![
        json!({"allOf": [first, second]}),
        json!({"$ref": "#/$defs/50%25", "allOf": [second], "$defs": {"50%": first}}),
    ];
    let beside = |more: &Fields| {
        Value::Object(first_names.iter().chain(more).map(|(key, rule)| (key.clone(), rule.clone())).collect())
    };
    let is_related = |group: &&[&str]| {
        [first_names, names].iter().all(|names| group.iter().any(|key| names.contains_key(*key)))
    };
    if !names.keys().any(|key| first_names.contains_key(key)) && !RELATED.iter().any(is_related) {
        ways.push(beside(names));
    }
    // What an alternative names is evaluated.
    if !["anyOf", "unevaluatedProperties"].iter().any(|key| first_names.contains_key(*key)) {
        ways.push(beside(&Map::from_iter([("anyOf".to_owned(), json!([second]))])));
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

/// Within a class, what looks like a lookahead is letters.
#[test]
fn a_class_with_the_letters_of_a_lookahead_allows_them() {
    let listed = json!({"enum": ["Hi!", "No.", "<"], "pattern": "^[A-Za-z0-9 .,(?!)-]+$"});
    let normal = normalise(&listed, Strictness::Lenient).unwrap();
    assert_eq!(normal, Normalised { schema: json!({"enum": ["Hi!", "No."]}), notes: Vec::new() });
}

/// An answer satisfies all keywords, or a note says which of them is not enforced.
#[test]
fn answers_satisfy_every_keyword_that_no_note_names() {
    let (rules, compiler, required) = (rules(), compiler(), required());
    for (at, first) in rules.iter().enumerate() {
        check_answers(&compiler, &first.schema, &[first]);
        for second in &rules[at + 1..] {
            let mut ways = both(&first.schema, &second.schema);
            // One normalised schema is one grammar.
            ways.dedup_by_key(|way| normalise(way, Strictness::Lenient));
            for way in ways {
                check_answers(&compiler, &way, &[first, second]);
            }
            let all = json!({"allOf": [first.schema, second.schema, required.schema]});
            check_answers(&compiler, &all, &[first, second, &required]);
        }
    }
}

fn check_answers(compiler: &Compiler, schema: &Value, rules: &[&Rule]) {
    let Ok(normal) = normalise(schema, Strictness::Lenient) else { return };
    if !normal.notes.is_empty() {
        return;
    }
    let Ok(guide) = compiler.compile(&Constraint::JsonSchema(schema.clone())) else { return };
    for value in values() {
        let allowed = rules.iter().all(|rule| (rule.allows)(&value));
        let accepted = accepts_from(guide.fork(), &value.to_string());
        assert!(allowed || !accepted, "{schema} accepts {value}");
    }
}

/// What is evaluated is what a part names itself, and what its own parts name.
#[test]
fn unevaluated_names_and_items_are_those_of_their_own_part() {
    let closed = |names: &str| json!({"properties": {names: {}}, "unevaluatedProperties": false});
    let named = |name: &str| json!({"properties": {name: {}}});
    let alternatives = json!([{"properties": {"b": {}}, "required": ["b"]}, named("c")]);
    let compiler = compiler();
    let check = |schema: Value, accepted: &[&str], refused: &[&str]| {
        assert_eq!(normalise(&schema, Strictness::Strict).unwrap().notes, Vec::<String>::new(), "{schema}");
        let guide = compiler.compile(&Constraint::JsonSchema(schema.clone())).unwrap();
        for (texts, expect) in [(accepted, true), (refused, false)] {
            for text in texts {
                assert_eq!(accepts_from(guide.fork(), text), expect, "{schema}: {text}");
            }
        }
    };
    let (a, b, both) = (r#"{"a":1}"#, r#"{"b":1}"#, r#"{"a":1,"b":1}"#);
    check(json!({"allOf": [closed("a"), named("b")]}), &[a, "{}"], &[b, both]);
    check(json!({"allOf": [named("b"), closed("a")]}), &[a, "{}"], &[b, both]);
    let base = json!({"$ref": "#/$defs/base", "properties": {"b": {}}, "$defs": {"base": closed("a")}});
    check(base, &[a, "{}"], &[b, both]);
    let whole = json!({"allOf": [named("a"), named("b")], "unevaluatedProperties": false});
    check(whole, &[a, b, both], &[r#"{"c":1}"#]);
    let nested = json!({"allOf": [{"allOf": [named("a")], "unevaluatedProperties": false}, named("b")]});
    check(nested, &[a], &[b, both]);
    let some = json!({"properties": {"a": {}}, "anyOf": alternatives, "unevaluatedProperties": false});
    check(some, &[a, both, r#"{"a":1,"c":1}"#], &[r#"{"b":1,"d":1}"#]);
    let integers = json!({"allOf": [named("a")], "unevaluatedProperties": {"type": "integer"}});
    check(integers, &[r#"{"a":"x","z":1}"#], &[r#"{"a":1,"z":"x"}"#]);
    let tuple = json!({"prefixItems": [{}], "unevaluatedItems": false});
    check(json!({"allOf": [tuple, {"prefixItems": [{}, {}]}]}), &["[]", "[1]"], &["[1,2]"]);
    check(json!({"type": "array", "unevaluatedItems": false}), &["[]"], &["[1]"]);
    let uncertain = json!({"anyOf": alternatives, "unevaluatedProperties": false});
    let normal = normalise(&json!({"allOf": [uncertain, named("a")]}), Strictness::Lenient).unwrap();
    assert!(
        normal.notes[0].starts_with("$.allOf[0].unevaluatedProperties: not enforced"),
        "{:?}",
        normal.notes
    );
}

/// What one part does not allow is not allowed because another part names it.
#[test]
fn names_of_another_part_are_not_additional_to_it_alone() {
    let normal = |schema: Value| normalise(&schema, Strictness::Lenient).unwrap();
    let closed = json!({"properties": {"a": {}}, "additionalProperties": false});
    let integers =
        json!({"properties": {"b": {"type": "integer"}}, "patternProperties": {"^c": {"type": "null"}}});
    let both = normal(json!({"allOf": [closed, integers]}));
    let expect = json!({"type": "object", "properties": {"a": true, "b": false}, "patternProperties": {"^c": false},
                        "additionalProperties": false});
    assert_eq!(both, Normalised { schema: expect, notes: Vec::new() });
    let open = json!({"properties": {"a": {"type": "null"}, "ab": {}}, "patternProperties": {"^a": {}},
                      "additionalProperties": {"type": "integer"}});
    let names =
        json!({"properties": {"ab": {"type": "string"}, "ac": {"type": "string"}, "b": {"minimum": 1}}});
    let both = normal(json!({"allOf": [names, open]})).schema;
    let expect = json!({"ab": {"type": "string"}, "ac": {"type": "string"}, "a": {"type": "null"},
                        "b": {"type": "integer", "minimum": 1}});
    assert_eq!(both["properties"], expect);
    // Of the names that a pattern matches, the other part has some.
    let pattern = json!({"patternProperties": {"^a": {"type": "integer"}}});
    let notes = normal(json!({"allOf": [closed, pattern]})).notes;
    assert!(notes[0].starts_with("$.allOf[1].additionalProperties: not enforced"), "{notes:?}");
    let tuple = json!({"allOf": [{"prefixItems": [true, true]}, {"prefixItems": [{"type": "null"}], "items": {"type": "integer"}}]});
    let expect = json!({"prefixItems": [{"type": "null"}, {"type": "integer"}], "items": {"type": "integer"}, "type": "array"});
    assert_eq!(normal(tuple), Normalised { schema: expect, notes: Vec::new() });
}
