//! Schemas that once took gigabytes, minutes, or more than the stack: each is read, or refused, within the time and the
//! stack of a request.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::*;

/// A debug build takes a twentieth of this; to compare, or copy, everything takes longer.
const TIME_MAX: Duration = Duration::from_secs(2);
/// Stack of the threads on which a server reads requests.
const STACK_BYTES: usize = 2 << 20;

fn read(schema: &Value) -> Result<Normalised> {
    let started = Instant::now();
    let normal = thread::scope(|scope| {
        let builder = thread::Builder::new().stack_size(STACK_BYTES);
        let reader = builder.spawn_scoped(scope, || normalise(schema, Strictness::Lenient)).unwrap();
        reader.join().unwrap()
    });
    let took = started.elapsed();
    assert!(took < TIME_MAX, "{:.80} took {took:?}", schema.to_string());
    normal
}

fn many<T>(count: usize, each: impl Fn(usize) -> T) -> Vec<T> {
    (0..count).map(each).collect()
}

fn properties(count: usize, each: impl Fn(usize) -> Value) -> Map<String, Value> {
    (0..count).map(|i| (format!("p{i}"), each(i))).collect()
}

/// One of the 128 spellings of a reference.
fn spelled(i: usize) -> Value {
    let letters = (0..7_u32).map(|bit| if (i >> bit) % 2 == 1 { "%6C" } else { "l" });
    json!({"$ref": format!("#/$defs/{}", letters.collect::<String>())})
}

#[test]
fn thousands_of_parts_are_combined_beside_each_other() {
    for (keyword, name) in [
        ("items", None),
        ("additionalProperties", None),
        ("properties", Some("a")),
        ("patternProperties", Some("^a")),
    ] {
        let part = |i: usize| match name {
            None => json!({keyword: {"minimum": i}}),
            Some(name) => json!({keyword: {name: {"minimum": i}}}),
        };
        let normal = read(&json!({"allOf": many(5_000, part)})).unwrap().schema;
        let schema = name.map_or(&normal[keyword], |name| &normal[keyword][name]);
        assert_eq!(schema, &json!({"type": "number", "minimum": 4_999}), "{keyword}");
    }
}

#[test]
fn parts_within_parts_are_limited() {
    let nested = |i: usize| {
        let reference = json!({"$ref": format!("#/$defs/d{}", i + 1)});
        (format!("d{i}"), (0..50).fold(reference, |part, _| json!({"allOf": [part]})))
    };
    let mut definitions: Map<String, Value> = (0..100).map(nested).collect();
    definitions.insert("d100".to_owned(), json!({"type": "string"}));
    let error = read(&json!({"$ref": "#/$defs/d0", "minLength": 1, "$defs": definitions})).unwrap_err();
    assert!(error.message.contains("parts within more than"), "{error}");
}

/// The deepest chains of references that are read fit on the stack.
#[test]
fn long_chains_of_references_are_read() {
    let chain = |count: usize, each: &dyn Fn(Value) -> Value| -> Map<String, Value> {
        let link = |i: usize| (format!("d{i}"), each(json!({"$ref": format!("#/$defs/d{}", i + 1)})));
        let last = (format!("d{count}"), json!({"type": "object"}));
        (0..count).map(link).chain([last]).collect()
    };
    let parts = chain(120, &|next: Value| json!({"allOf": [next, {"minProperties": 0}]}));
    let reference = json!({"$ref": "#/$defs/d0", "minProperties": 1});
    let mut schema = (0..90).fold(reference, |items, _| json!({"items": items}));
    schema["$defs"] = Value::Object(parts);
    read(&schema).unwrap();
    let properties = chain(120, &|mut next: Value| {
        next["minProperties"] = json!(0);
        json!({"properties": {"a": next}})
    });
    read(&json!({"$ref": "#/$defs/d0", "minProperties": 0, "$defs": properties})).unwrap();
}

#[test]
fn combinations_copy_a_limited_number_of_values() {
    let list = json!({"enum": vec![1; 20_000]});
    let names = json!({"required": many(20_000, |i| format!("{i:x}"))});
    let part = |i: usize| {
        let properties = Map::from_iter([(format!("p{i}"), json!({}))]);
        json!({"properties": properties, "additionalProperties": {"minimum": i}})
    };
    let cases = [
        (
            "references beside keywords",
            json!({"$defs": {"list": list},
                "properties": properties(100, |_| json!({"$ref": "#/$defs/list", "minimum": 0}))}),
        ),
        (
            "keywords beside alternatives",
            json!({"properties": {"a": list}, "anyOf": many(100, |i| json!({"minProperties": i}))}),
        ),
        (
            "a pattern of many properties",
            json!({"properties": properties(100, |_| json!({})), "patternProperties": {"^p": list}}),
        ),
        (
            "names of properties",
            json!({"propertyNames": {"enum": many(100, |i| format!("p{i}"))}, "additionalProperties": list}),
        ),
        ("names that are new to the other parts", json!({"allOf": many(1_000, part)})),
        ("many references", json!({"$defs": {"lllllll": list}, "properties": properties(100, spelled)})),
        (
            "many references to names",
            json!({"$defs": {"lllllll": names}, "properties": properties(100, spelled)}),
        ),
    ];
    for (name, schema) in cases {
        let error = read(&schema).expect_err(name);
        assert!(error.message.contains("copies more than"), "{name}: {error}");
    }
}

/// The other properties are not read, of which each could copy a large schema.
#[test]
fn too_many_optional_properties_are_refused_first() {
    let mut properties = properties(500, |_| json!({}));
    properties.insert("wrong".to_owned(), json!(3));
    assert_eq!(read(&json!({ "properties": properties })).unwrap_err().path, "$.properties");
}

#[test]
fn a_long_schema_is_refused_before_it_is_read() {
    let error = read(&json!({"title": "x".repeat(300_000), "type": "nonsense"})).unwrap_err();
    assert_eq!(error.path, "$", "{error}");
    assert!(error.message.contains("the limit is 262144"), "{error}");
}

/// The options for llguidance have expressions, which take as much as patterns do.
#[test]
fn expressions_of_options_are_limited() {
    let many_classes = r"[\pL\w]".repeat(251);
    for key in ["whitespace_pattern", "item_separator", "key_separator"] {
        for expression in [&"a".repeat(20_000), &many_classes] {
            let error = read(&json!({"type": "object", "x-guidance": {key: expression}})).unwrap_err();
            assert_eq!(error.path, format!("$.x-guidance.{key}"), "{error}");
        }
        read(&json!({"type": "object", "x-guidance": {key: "[,:]"}})).unwrap();
    }
    let patterns = properties(2, |_| json!({"pattern": "a".repeat(4_000)}));
    let together = json!({"properties": patterns, "x-guidance": {"whitespace_pattern": "b".repeat(9_000)}});
    assert_eq!(read(&together).unwrap_err().path, "$.x-guidance.whitespace_pattern");
}

#[test]
fn long_lists_are_compared_in_time() {
    let names = |i: usize| json!({"required": many(9_000, |name| format!("{:x}", i * 9_000 + name))});
    let normal = read(&json!({"allOf": many(4, names)})).unwrap().schema;
    assert_eq!(normal["required"], json!(many(36_000, |name| format!("{name:x}"))));
    let numbers = |from: usize| json!({"enum": many(20_000, |i| from + i)});
    let normal = read(&json!({"allOf": [numbers(0), numbers(19_999)]})).unwrap().schema;
    assert_eq!(normal, json!({"enum": [19_999]}));
}

#[test]
fn lists_have_what_equals_a_value_of_the_other() {
    let check = |first: Value, second: Value, expect: Value| {
        let normal = read(&json!({"allOf": [{"enum": first}, {"enum": second}]})).unwrap().schema;
        assert_eq!(normal["enum"], expect);
    };
    check(json!([1, 2.0, 0, "1", null]), json!([1.0, 2, -0.0, null]), json!([1, 2.0, 0, null]));
    check(
        json!([{"a": 1, "b": [2]}, [1, 2]]),
        json!([{"b": [2.0], "a": 1}, [2, 1]]),
        json!([{"a": 1, "b": [2]}]),
    );
    let large = 9_007_199_254_740_993_u64;
    check(json!([large, large - 1]), json!([large]), json!([large]));
    check(json!([large]), json!([9_007_199_254_740_992.0]), json!([large]));
}

/// Of listed values, as many are checked as there is time for; a note names what the others were not checked for.
#[test]
fn checks_of_listed_values_end() {
    let check = |schema: &Value, values: usize, notes: usize| {
        let normal = read(schema).unwrap();
        assert_eq!(normal.schema["enum"].as_array().map(Vec::len), Some(values));
        assert_eq!(normal.notes.len(), notes, "{:?}", normal.notes);
    };
    let mut keywords: Map<String, Value> = (0..5_000).map(|i| (format!("x{i}"), json!(0))).collect();
    keywords.insert("enum".to_owned(), json!(vec![1; 10_000]));
    check(&Value::Object(keywords), 10_000, NOTES_MAX);
    let numbers = |from: usize| many(20_000, |i| from + i);
    check(&json!({"enum": numbers(0), "not": {"enum": numbers(20_000)}}), 20_000, 1);
    let few = |from: usize| many(1_000, |i| from + i);
    check(&json!({"enum": few(0), "not": {"enum": few(990)}}), 990, 0);
}

#[test]
fn few_patterns_are_compiled_for_listed_values() {
    let patterns: Map<String, Value> = (0..60).map(|i| (format!("^b{i}$"), json!({}))).collect();
    let list = json!({"enum": [{"a": 1}], "patternProperties": patterns});
    let lists = |count: usize| json!({"properties": properties(count, |_| list.clone())});
    assert_eq!(read(&lists(8)).unwrap().notes.len(), 0);
    assert!(!read(&lists(20)).unwrap().notes.is_empty());
}
