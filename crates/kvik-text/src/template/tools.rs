//! Tools as templates expect them: with all fields that templates read without checking for them.

use serde_json::{Map, Value, json};

use crate::tools::no_parameters;

/// The tools with a description and with parameters, each empty if the request has none.
///
/// Templates read `description` and `parameters.properties` of every tool, and fail if one is missing or null.
pub(super) fn complete(tools: &Value) -> Value {
    match tools.as_array() {
        Some(tools) => tools.iter().map(complete_tool).collect(),
        None => tools.clone(),
    }
}

/// The tools with schemas in which every part has a type and a description, for templates that read those of
/// each; an empty list if there are no tools, for templates that iterate without checking.
pub(super) fn explicit(tools: Option<&Value>) -> Value {
    let mut tools = tools.cloned().unwrap_or_else(|| json!([]));
    for tool in tools.as_array_mut().into_iter().flatten() {
        let parameters = tool.pointer_mut("/function/parameters/properties");
        for schema in parameters.and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
            make_explicit(schema, SCHEMA_DEPTH_MAX);
        }
    }
    tools
}

/// Maximum nesting of schemas that are made explicit.
const SCHEMA_DEPTH_MAX: usize = 32;

fn make_explicit(schema: &mut Value, depth: usize) {
    let kind = type_of(schema);
    if !schema.is_object() {
        *schema = json!({});
    }
    let Value::Object(fields) = schema else { return };
    if !fields.get("description").is_some_and(Value::is_string) {
        fields.insert("description".into(), json!(""));
    }
    match kind.as_str() {
        "object" if !fields.get("properties").is_some_and(Value::is_object) => {
            fields.insert("properties".into(), json!({}));
        }
        "array" if !fields.get("items").is_some_and(Value::is_object) => {
            fields.insert("items".into(), json!({}));
        }
        _ => {}
    }
    if kind == "object" && !fields.get("additionalProperties").is_some_and(Value::is_object) {
        fields.insert("additionalProperties".into(), json!({}));
    }
    fields.insert("type".into(), kind.into());
    let Some(depth) = depth.checked_sub(1) else { return };
    let properties = fields.get_mut("properties").and_then(Value::as_object_mut);
    properties.into_iter().flat_map(Map::values_mut).for_each(|schema| make_explicit(schema, depth));
    for name in ["items", "additionalProperties"] {
        if let Some(schema) = fields.get_mut(name) {
            make_explicit(schema, depth);
        }
    }
}

/// The type of a schema's values: the first that is not null, if there are several.
fn type_of(schema: &Value) -> String {
    let own = |schema: &Value| {
        let listed = schema["type"].as_array().into_iter().flatten();
        let mut names = listed.chain([&schema["type"]]).filter_map(Value::as_str);
        names.find(|name| *name != "null").map(str::to_owned)
    };
    let branches =
        ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|name| schema[name].as_array()).flatten();
    let implied = || if schema["properties"].is_object() { "object" } else { "string" };
    own(schema).or_else(|| branches.into_iter().find_map(own)).unwrap_or_else(|| implied().to_owned())
}

fn complete_tool(tool: &Value) -> Value {
    let mut tool = tool.clone();
    match tool.get_mut("function") {
        Some(Value::Object(function)) => *function = complete_function(function),
        _ => return tool,
    }
    if tool["type"].is_null() {
        let Value::Object(fields) = tool else { return tool };
        return Value::Object(with_first("type", json!("function"), &fields));
    }
    tool
}

fn complete_function(function: &Map<String, Value>) -> Map<String, Value> {
    let given = |name: &str| function.get(name).filter(|value| !value.is_null()).cloned();
    let description = given("description").unwrap_or_else(|| json!(""));
    let parameters = given("parameters").map_or_else(no_parameters, complete_parameters);
    let mut complete = function.clone();
    match complete.get_mut("description") {
        Some(known) => *known = description,
        // After the name, where models expect it.
        None => {
            let name = complete.shift_remove("name").unwrap_or_default();
            complete = with_first("description", description, &complete);
            complete = with_first("name", name, &complete);
        }
    }
    complete.insert("parameters".into(), parameters);
    complete
}

/// Adds the type `object` and properties to a schema of parameters without them.
fn complete_parameters(parameters: Value) -> Value {
    let Value::Object(mut schema) = parameters else { return parameters };
    if schema.get("type").is_none_or(Value::is_null) {
        schema = with_first("type", json!("object"), &schema);
    }
    if schema["type"] == "object" && schema.get("properties").is_none_or(Value::is_null) {
        schema.insert("properties".into(), json!({}));
    }
    Value::Object(schema)
}

/// The fields with this one first.
fn with_first(name: &str, value: Value, fields: &Map<String, Value>) -> Map<String, Value> {
    let others = fields.iter().filter(|(known, _)| *known != name);
    let others = others.map(|(name, value)| (name.clone(), value.clone()));
    std::iter::once((name.to_owned(), value)).chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_an_explicit_schema_has_a_type_and_a_description() {
        let explicit_part = |schema: Value| {
            let parameters = json!({"type": "object", "properties": {"a": schema}});
            let tools = json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]);
            explicit(Some(&tools))[0]["function"]["parameters"]["properties"]["a"].clone()
        };
        let check = |schema: Value, kind: &str| {
            let found = explicit_part(schema.clone());
            assert_eq!(
                (found["type"].as_str(), found["description"].is_string()),
                (Some(kind), true),
                "{schema}"
            );
        };
        check(json!(true), "string");
        check(json!({}), "string");
        check(json!({"type": ["null", "integer"], "description": null}), "integer");
        check(json!({"anyOf": [{"type": "null"}, {"type": "number"}]}), "number");
        check(json!({"properties": {}}), "object");
        check(json!({"enum": ["x"], "description": "X"}), "string");
        let nested =
            explicit_part(json!({"type": "array", "items": {"type": "object", "properties": {"b": {}}}}));
        assert_eq!(nested["items"]["properties"]["b"], json!({"description": "", "type": "string"}));
        assert_eq!(
            explicit_part(json!({"type": "array"}))["items"],
            json!({"description": "", "type": "string"})
        );
        assert_eq!(explicit(None), json!([]));
        let mut deep = json!({});
        for _ in 0..100 {
            deep = json!({"type": "array", "items": deep});
        }
        check(deep, "array");
    }

    #[test]
    fn missing_parts_are_filled_in_where_models_have_them() {
        let check = |function: Value, expect: &str| {
            let tools = complete(&json!([{"type": "function", "function": function}]));
            assert_eq!(tools[0]["function"].to_string(), expect);
        };
        let empty = r#"{"name":"f","description":"","parameters":{"type":"object","properties":{}}}"#;
        check(json!({"name": "f"}), empty);
        check(json!({"name": "f", "description": null, "parameters": null}), empty);
        check(json!({"name": "f", "parameters": {}}), empty);
        check(json!({"name": "f", "parameters": {"type": "object", "properties": null}}), empty);
        let whole = r#"{"name":"f","parameters":{"type":"object","properties":{"a":{}},"required":["a"]},"description":"F","strict":true}"#;
        check(serde_json::from_str(whole).unwrap(), whole);
        check(
            json!({"name": "f", "parameters": {"properties": {"a": {}}}}),
            r#"{"name":"f","description":"","parameters":{"type":"object","properties":{"a":{}}}}"#,
        );
        check(
            json!({"name": "f", "parameters": {"type": "string"}}),
            r#"{"name":"f","description":"","parameters":{"type":"string"}}"#,
        );
        let untyped = complete(&json!([{"function": {"name": "f"}}, {"name": "flat"}]));
        assert_eq!((&untyped[0]["type"], &untyped[1]), (&json!("function"), &json!({"name": "flat"})));
    }
}
