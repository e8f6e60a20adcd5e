//! `const` and `enum`: with a list of values, all other keywords are redundant.

use serde_json::{Value, json};

use super::{Fields, Result, failed, types};

/// The listed values that have the schema's type.
pub(super) fn literal(fields: &Fields, at: &str) -> Result<Option<Value>> {
    if let Some(value) = fields.get("const") {
        return Ok(Some(json!({ "const": value })));
    }
    let Some(values) = fields.get("enum") else { return Ok(None) };
    let Value::Array(values) = values else {
        return Err(failed(&format!("{at}.enum"), "must be an array of values"));
    };
    let types = if fields.contains_key("type") { types(fields, at)? } else { None };
    let is_of =
        |value: &&Value| types.as_ref().is_none_or(|types| types.iter().any(|kind| has_type(value, kind)));
    let values: Vec<&Value> = values.iter().filter(is_of).collect();
    if values.is_empty() {
        return Err(failed(&format!("{at}.enum"), "has no value of the schema's type"));
    }
    Ok(Some(json!({ "enum": values })))
}

fn has_type(value: &Value, kind: &str) -> bool {
    match value {
        Value::Null => kind == "null",
        Value::Bool(_) => kind == "boolean",
        Value::Number(number) => {
            kind == "number" || (kind == "integer" && number.as_f64().is_some_and(|x| x.fract() == 0.0))
        }
        Value::String(_) => kind == "string",
        Value::Array(_) => kind == "array",
        Value::Object(_) => kind == "object",
    }
}
