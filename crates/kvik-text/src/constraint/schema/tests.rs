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

/// A required name that neither `properties` nor the pattern describes has any value, unless the schema says of other names
/// what theirs is.
#[test]
fn required_names_beside_a_pattern() {
    let of_pattern = json!({"patternProperties": {"^b": {"type": "integer"}}, "required": ["a"]});
    let with = |keyword: &str, rule: Value| {
        let mut schema = of_pattern.clone();
        schema[keyword] = rule;
        schema
    };
    for (schema, accepted, refused) in [
        (of_pattern.clone(), r#"{"a":"x","b1":2}"#, r#"{"b1":2}"#),
        (of_pattern.clone(), r#"{"a":[1]}"#, r#"{"a":1,"b1":"x"}"#),
        (of_pattern.clone(), r#"{"a":1}"#, r#"{"a":1,"c":2}"#),
        (with("required", json!(["b1", "a"])), r#"{"a":"x","b1":2}"#, r#"{"a":"x","b1":"y"}"#),
        (with("properties", json!({"c": {"type": "null"}})), r#"{"c":null,"a":"x"}"#, r#"{"c":null}"#),
        (with("additionalProperties", json!({"type": "null"})), r#"{"a":null}"#, r#"{"a":1}"#),
    ] {
        assert_eq!(lenient(&schema).notes, Vec::<String>::new(), "{schema}");
        for (text, expect) in [(accepted, true), (refused, false)] {
            assert_eq!(accepts(&Constraint::JsonSchema(schema.clone()), text), expect, "{schema} on {text}");
        }
    }
    let closed = lenient(&with("additionalProperties", json!(false)));
    assert!(closed.notes[0].starts_with("$.additionalProperties: not enforced"), "{:?}", closed.notes);
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

/// NSwag, zod and valibot close each class by itself, so that no value would satisfy a class and its base: the properties of
/// both are allowed.
#[test]
fn inheritance_of_closed_objects() {
    let closed = |names: &[&str]| {
        let properties: Map<_, _> =
            names.iter().map(|name| ((*name).to_owned(), json!({"type": "integer"}))).collect();
        json!({"type": "object", "properties": properties, "required": names, "additionalProperties": false})
    };
    let check = |schema: Value, notes: usize| {
        assert_eq!(lenient(&schema).notes.len(), notes, "{schema}: {:?}", lenient(&schema).notes);
        normalise(&schema, Strictness::Strict).unwrap();
        let constraint = Constraint::JsonSchema(schema.clone());
        for (text, expect) in [
            (r#"{"id":1,"x":2}"#, true),
            (r#"{"id":1}"#, false),
            (r#"{"x":2}"#, false),
            (r#"{"id":1,"x":2,"y":3}"#, false),
        ] {
            assert_eq!(accepts(&constraint, text), expect, "{schema}: {text}");
        }
    };
    let base = json!({"Base": closed(&["id"])});
    let reference = json!({"$ref": "#/definitions/Base"});
    check(json!({"allOf": [closed(&["id"]), closed(&["x"])]}), 1);
    check(json!({"allOf": [reference, closed(&["x"])], "definitions": base}), 1);
    let mut siblings = closed(&["x"]);
    siblings["allOf"] = json!([reference]);
    siblings["definitions"] = base.clone();
    check(siblings, 1);
    let open = |name: &str| {
        let mut schema = closed(&[name]);
        schema.as_object_mut().unwrap().remove("additionalProperties");
        schema
    };
    let mut referring = open("x");
    referring["$ref"] = reference["$ref"].clone();
    referring["definitions"] = base.clone();
    check(referring, 1);
    // A union in an intersection, as zod-to-json-schema writes it.
    check(json!({"allOf": [{"anyOf": [closed(&["x"]), closed(&["z"])]}, open("id")]}), 2);
    let empty = json!({"type": "object", "additionalProperties": false});
    let derived = json!({"Base": closed(&["id", "x"])});
    check(json!({"allOf": [reference, empty], "definitions": derived}), 1);
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
    let needed = json!({"properties": {}, "required": ["a"], "additionalProperties": false});
    check(needed, &["$.additionalProperties"], false);
    check(json!({"properties": {}, "propertyNames": {"type": "string"}, "required": ["a"]}), &[], false);
    check(json!({"propertyNames": {"enum": ["b"]}, "required": ["a"]}), &["$.propertyNames"], false);
    check(json!({"type": "integer", "multipleOf": 10_000_019}), &["$.multipleOf"], true);
    check(json!({"type": "number", "multipleOf": 0.07}), &["$.multipleOf"], true);
    check(json!({"type": "number", "multipleOf": 2, "maximum": f64::MAX}), &["$.maximum"], false);
    check(json!({"type": "integer", "multipleOf": 2, "minimum": i64::MIN}), &["$.minimum"], false);
    let half = json!({"type": "number", "multipleOf": 0.1, "exclusiveMinimum": 0, "maximum": 0.5});
    check(half, &[], false);
    let options = json!({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5, "x-guidance": {}});
    check(options, &["$.exclusiveMinimum"], false);
    check(json!({"multipleOf": 0.1, "exclusiveMinimum": 0, "maximum": 1}), &[], false);
    let options = json!({"type": "integer", "exclusiveMaximum": u64::MAX, "x-guidance": {}});
    check(options, &["$.exclusiveMaximum"], false);
    check(json!({"type": "integer", "minimum": i64::MIN, "maximum": f64::MAX}), &[], false);
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
    check(json!({"type": "integer", "multipleOf": 2, "minimum": u64::MAX}), "$.minimum");
    check(json!({"items": {"type": "number", "maximum": i64::MIN}, "x-guidance": {}}), "$.items.maximum");
    check(json!({"required": [1]}), "$.required");
    check(json!({"anyOf": []}), "$.anyOf");
    check(json!({"anyOf": [true, {"allOf": [3]}]}), "$.anyOf[1].allOf[0]");
    check(json!({"allOf": [{"items": [true]}, {"items": {"minimum": 1}}]}), "$.items.allOf[0]");
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
fn bounds_beside_a_divisor_are_its_multiples_where_llguidance_would_include_them() {
    let check = |schema: Value, expect: Value| assert_eq!(lenient(&schema).schema, expect, "{schema}");
    let number = |mut bounds: Value, divisor: f64| {
        bounds["type"] = json!("number");
        bounds["multipleOf"] = json!(divisor);
        bounds
    };
    for (divisor, bounds, expect) in [
        (0.1, json!({"exclusiveMinimum": 0, "maximum": 0.5}), json!({"minimum": 0.1, "maximum": 0.5})),
        (0.3, json!({"exclusiveMinimum": 1, "maximum": 1.9}), json!({"minimum": 1.2, "maximum": 1.9})),
        (0.25, json!({"minimum": -0.5, "exclusiveMaximum": 0}), json!({"minimum": -0.5, "maximum": -0.25})),
        (
            0.1,
            json!({"exclusiveMinimum": 0, "minimum": -3, "maximum": 0.5}),
            json!({"minimum": 0.1, "maximum": 0.5}),
        ),
    ] {
        check(number(bounds, divisor), number(expect, divisor));
    }
    for kept in [
        json!({"exclusiveMinimum": 0, "maximum": 1}),
        json!({"exclusiveMinimum": 0.5, "maximum": 0.9}),
        json!({"exclusiveMinimum": 0, "minimum": 0.2, "maximum": 0.5}),
        json!({"exclusiveMinimum": -1, "maximum": -0.5}),
        json!({"exclusiveMinimum": 0}),
    ] {
        check(number(kept.clone(), 0.1), number(kept, 0.1));
    }
    let none = number(json!({"exclusiveMinimum": 0, "exclusiveMaximum": 0.4}), 0.4);
    assert!(normalise(&none, Strictness::Lenient).is_err_and(|error| error.excludes_all));
}

/// A float has no whole number between 2^53 and 2^53 + 2.
#[test]
fn bounds_of_many_digits_are_compared_to_the_last() {
    const FLOATS_END: u64 = 1 << 53;
    let (max, below) = (i64::MAX, i64::MAX - 1);
    let merged = |parts: [Value; 2]| lenient(&json!({"type": "integer", "allOf": parts})).schema;
    for parts in [
        [json!({"maximum": max}), json!({"maximum": below})],
        [json!({"maximum": below}), json!({"maximum": max})],
    ] {
        assert_eq!(merged(parts), json!({"type": "integer", "maximum": below}));
    }
    let above = [json!({"minimum": FLOATS_END + 1}), json!({"minimum": FLOATS_END})];
    assert_eq!(merged(above), json!({"type": "integer", "minimum": FLOATS_END + 1}));

    let one = json!({"type": "integer", "exclusiveMinimum": FLOATS_END, "maximum": FLOATS_END + 1});
    for (text, expect) in
        [("9007199254740992", false), ("9007199254740993", true), ("9007199254740994", false)]
    {
        assert_eq!(accepts(&Constraint::JsonSchema(one.clone()), text), expect, "{text}");
    }
    let none = json!({"type": "integer", "exclusiveMinimum": FLOATS_END, "exclusiveMaximum": FLOATS_END});
    assert!(normalise(&none, Strictness::Lenient).is_err_and(|error| error.excludes_all));

    let listed = |beside: Value| {
        let mut schema = json!({"enum": [FLOATS_END, FLOATS_END + 1, 9007199254740994.0]});
        schema.as_object_mut().unwrap().extend(beside.as_object().unwrap().clone());
        lenient(&schema).schema["enum"].clone()
    };
    assert_eq!(listed(json!({"maximum": FLOATS_END})), json!([FLOATS_END]));
    assert_eq!(listed(json!({"minimum": FLOATS_END + 1})), json!([FLOATS_END + 1, 9007199254740994.0]));
    assert_eq!(
        listed(json!({"exclusiveMaximum": 1e300, "minimum": 9007199254740994.0})),
        json!([9007199254740994.0])
    );
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

/// Go prints an empty list as null, and other programs print all keywords.
#[test]
fn a_keyword_that_is_null_is_absent() {
    let check = |schema: Value, expect: Value| assert_eq!(lenient(&schema).schema, expect, "{schema}");
    check(json!({"type": "object", "required": null}), json!({"type": "object"}));
    check(json!({"type": "object", "x-guidance": null}), json!({"type": "object"}));
    for keyword in ["properties", "additionalProperties", "anyOf", "oneOf", "allOf", "not", "enum", "$ref"] {
        check(json!({"type": "object", keyword: null}), json!({"type": "object"}));
    }
    for keyword in ["pattern", "format", "minLength", "maxLength", "nullable", "type", "description"] {
        check(json!({"const": "a", keyword: null}), json!({"const": "a"}));
        check(json!({keyword: null}), json!(true));
    }
    for keyword in ["minimum", "exclusiveMaximum", "multipleOf"] {
        check(json!({"type": "integer", keyword: null}), json!({"type": "integer"}));
    }
    for keyword in ["items", "prefixItems", "minItems", "uniqueItems", "contains"] {
        check(json!({"type": "array", keyword: null}), json!({"type": "array"}));
    }
    let part = json!({"type": "string", "enum": null, "minLength": 1});
    let expect = json!({"minLength": 1, "maxLength": 3, "type": "string"});
    check(json!({"allOf": [part], "maxLength": 3, "pattern": null}), expect);
    check(json!({"const": null}), json!({"const": null}));
    check(json!({"enum": ["a", null]}), json!({"enum": ["a", null]}));
}
