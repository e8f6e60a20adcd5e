use serde_json::{Value, json};

use super::super::tests::accepts;
use super::*;
use crate::forms::Constraint;

fn lenient(schema: &Value) -> Normalised {
    normalise(schema, Strictness::Lenient).unwrap_or_else(|error| panic!("{schema}: {error}"))
}

/// Schemas printed by other programs, with texts that they accept and refuse.
fn check_printed(cases: &str) {
    for case in serde_json::from_str::<Vec<Value>>(cases).unwrap() {
        let name = &case["name"];
        let normal = lenient(&case["schema"]);
        assert_eq!(lenient(&normal.schema).schema, normal.schema, "{name} changes again");
        let strict = normalise(&case["schema"], Strictness::Strict);
        assert_eq!(strict.as_ref(), Ok(&normal), "{name} under strict");
        let constraint = Constraint::JsonSchema(case["schema"].clone());
        for (list, expect) in [("accepts", true), ("refuses", false)] {
            for text in case[list].as_array().unwrap() {
                assert_eq!(accepts(&constraint, text.as_str().unwrap()), expect, "{name}: {text}");
            }
        }
    }
}

#[test]
fn schemas_of_pydantic() {
    check_printed(include_str!("pydantic.json"));
}

#[test]
fn schemas_of_zod() {
    check_printed(include_str!("zod.json"));
}

#[test]
fn objects_that_list_their_properties_are_closed() {
    let check = |schema: Value, text: &str, expect: bool| {
        assert_eq!(accepts(&Constraint::JsonSchema(schema.clone()), text), expect, "{schema} on {text}");
    };
    let a = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    check(a.clone(), r#"{"a":1}"#, true);
    check(a.clone(), r#"{"a":1,"b":2}"#, false);
    let open = json!({"type": "object", "properties": {"a": {}}, "additionalProperties": true});
    check(open, r#"{"a":1,"b":2}"#, true);
    check(json!({"type": "object"}), r#"{"b":2}"#, true);
    check(json!({"type": "object", "properties": {}}), r#"{"b":2}"#, false);
    // If each part were closed alone, no text would satisfy both.
    let both =
        json!({"allOf": [a, {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]}]});
    check(both.clone(), r#"{"a":1,"b":"x"}"#, true);
    check(both.clone(), r#"{"a":1}"#, false);
    check(both, r#"{"b":"x","c":1}"#, false);
    let either = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                        "anyOf": [{"required": ["a"]}, {"required": ["b"]}]});
    check(either.clone(), r#"{"b":1}"#, true);
    check(either, "{}", false);
    // A required property without a description accepts any value.
    check(json!({"type": "object", "properties": {"a": {}}, "required": ["b"]}), r#"{"b":[1]}"#, true);
}

#[test]
fn inheritance_through_references() {
    let schema = json!({
        "allOf": [{"$ref": "#/components/schemas/Base"}, {"properties": {"name": {"type": "string"}}, "required": ["name"]}],
        "components": {"schemas": {"Base": {"type": "object", "properties": {"id": {"type": "integer"},
            "parent": {"$ref": "#/components/schemas/Base"}}, "required": ["id"]}}}
    });
    let constraint = Constraint::JsonSchema(schema);
    assert!(accepts(&constraint, r#"{"id":1,"parent":{"id":2},"name":"x"}"#));
    assert!(!accepts(&constraint, r#"{"id":1}"#));
    assert!(!accepts(&constraint, r#"{"id":1,"parent":{"id":2,"name":"x"},"name":"x"}"#));
}

#[test]
fn unenforceable_keywords_are_noted_and_under_strict_refused_as_openai_does() {
    let check = |schema: Value, notes: &[&str], refused: bool| {
        let normal = lenient(&schema);
        let paths: Vec<&str> = normal.notes.iter().map(|note| note.split(": ").next().unwrap()).collect();
        assert_eq!(paths, notes, "{schema}: {:?}", normal.notes);
        let strict = normalise(&schema, Strictness::Strict);
        assert_eq!(strict.is_err(), refused, "{schema}: {strict:?}");
        if let Err(error) = strict {
            assert_eq!(error.path, notes[0]);
        }
    };
    for format in ["password", "binary", "path", "regex", "int32", "decimal"] {
        check(json!({"type": "string", "format": format}), &["$.format"], false);
    }
    let decimal = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$";
    check(
        json!({"properties": {"x": {"type": "string", "pattern": decimal}}}),
        &["$.properties.x.pattern"],
        false,
    );
    check(json!({"type": "string", "pattern": "(?<=a)b"}), &["$.pattern"], false);
    check(json!({"type": "array", "uniqueItems": false}), &[], false);
    check(json!({"type": "array", "uniqueItems": true}), &["$.uniqueItems"], false);
    check(json!({"oneOf": [{"type": "string"}, {"type": "string", "minLength": 3}]}), &["$.oneOf"], false);
    check(json!({"oneOf": [{"type": "string"}, {"type": "integer"}]}), &[], false);
    check(json!({"type": "string", "not": {"const": "a"}}), &["$.not"], true);
    check(json!({"type": "object", "if": {}, "then": {}, "else": {}}), &["$.if"], true);
    check(json!({"type": "object", "dependentRequired": {"a": ["b"]}}), &["$.dependentRequired"], true);
    check(json!({"type": "object", "propertyNames": {"pattern": "^a"}}), &["$.propertyNames"], true);
    check(json!({"type": "object", "propertyNames": {"type": "string"}}), &[], false);
    check(json!({"type": "array", "contains": {}, "minContains": 2}), &["$.contains", "$.minContains"], true);
    check(json!({"type": "object", "patternProperties": {"^a": {}}}), &[], false);
    check(
        json!({"type": "object", "patternProperties": {"^a": {}, "b$": {}}}),
        &["$.patternProperties"],
        true,
    );
    check(json!({"type": "integer", "multipleOf": 10_000_019}), &["$.multipleOf"], true);
    check(json!({"type": "number", "multipleOf": 0.07}), &["$.multipleOf"], true);
    check(json!({"type": "number", "multipleOf": 0.01, "title": "T", "default": 1}), &[], false);
    check(
        json!({"type": "string", "pattern": "^(a|b)*a(a|b){30}$", "maxLength": 50}),
        &["$.maxLength"],
        false,
    );
    check(json!({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}), &["$.allOf[1].pattern"], true);
}

#[test]
fn invalid_schemas_name_the_path() {
    let check = |schema: Value, path: &str| {
        let error = normalise(&schema, Strictness::Lenient).expect_err(&schema.to_string());
        assert_eq!(error.path, path, "{error}");
    };
    check(json!([]), "$");
    check(json!({"type": "nonsense"}), "$.type");
    check(json!({"properties": {"a": 3}}), "$.properties.a");
    check(json!({"properties": []}), "$.properties");
    check(json!({"$ref": "https://example.com/x"}), "$.$ref");
    check(json!({"properties": {"a": {"$ref": "#/$defs/none"}}}), "$.properties.a.$ref");
    check(json!({"allOf": [{"type": "string"}, {"type": "integer"}]}), "$.allOf[1].type");
    check(json!({"enum": "a"}), "$.enum");
    check(json!({"type": "string", "enum": [1]}), "$.enum");
    check(json!({"minLength": -1}), "$.minLength");
    check(json!({"type": "integer", "minimum": "1"}), "$.minimum");
    check(json!({"type": "integer", "multipleOf": 0}), "$.multipleOf");
    check(json!({"required": [1]}), "$.required");
    check(json!({"anyOf": []}), "$.anyOf");
    let many: Map<_, _> = (0..500).map(|i| (format!("p{i}"), json!({}))).collect();
    check(json!({ "properties": many }), "$.properties");
    let doubled = |i: usize| json!({"$ref": format!("#/$defs/a{}", i + 1)});
    let mut expanding: Map<_, _> =
        (0..40).map(|i| (format!("a{i}"), json!({"allOf": [doubled(i), doubled(i)]}))).collect();
    expanding.insert("a40".to_owned(), json!({"type": "object"}));
    assert!(normalise(&json!({"$ref": "#/$defs/a0", "$defs": expanding}), Strictness::Lenient).is_err());
    let selfish = json!({"$ref": "#/$defs/a", "type": "object", "$defs": {"a": {"$ref": "#/$defs/a"}}});
    assert!(normalise(&selfish, Strictness::Lenient).is_err());
}

#[test]
fn older_drafts_and_openapi_are_supported() {
    let check = |schema: Value, text: &str, expect: bool| {
        assert_eq!(accepts(&Constraint::JsonSchema(schema.clone()), text), expect, "{schema} on {text}");
    };
    check(json!({"type": "string", "nullable": true}), "null", true);
    check(json!({"type": "integer", "minimum": 3, "exclusiveMinimum": true}), "3", false);
    check(
        json!({"type": "array", "items": [{"type": "integer"}], "additionalItems": {"type": "string"}}),
        r#"[1,"a"]"#,
        true,
    );
    check(json!({"minimum": 3}), "4", true);
    check(json!({"type": ["string", "null"], "enum": ["a", null, 1]}), "1", false);
}
