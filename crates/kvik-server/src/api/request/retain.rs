//! `kvik.retain`, the retention of a request's sequences, and `retain`, the retention of a pinned prompt.
//!
//! The value is a text as for `--retain`, or an object with `policy`, `keep` and the options of the policy.
//! The policies define their options; the names are not repeated here.

use std::collections::BTreeMap;

use kvik_cache::retain::{Policy, Retention, RetentionError};
use serde::Deserialize;
use serde_json::{Map, Number, Value};

use super::number::whole;
use crate::http::{
    error::ApiError,
    json::{Json, wrong},
};
use kvik_serving::{retaining::RetainRefusal, settings::retain::RetainChoice};

type Result<T> = std::result::Result<T, ApiError>;

/// Description of the valid values.
const EXPECTED: &str =
    "a policy as \"snapkv:0.5\", an object with `policy`, `keep` and options, \"auto\" or \"none\"";
/// Description of the valid values of a field in the object.
const SCALAR: &str = "a text, a number, true or false";
/// Name of the field that requests the list of retained positions.
const SHOW: &str = "show";
/// Maximum bytes of the whole text, and of the text of one field.
const TEXT_BYTES_MAX: usize = 256;

/// The field as it was sent.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct RetainField(Json);

impl RetainField {
    /// Removes `show` from an object and returns it: whether the answer lists the retained positions.
    pub(crate) fn take_show(&mut self, path: &str) -> Result<bool> {
        let Value::Object(fields) = &mut self.0.0 else { return Ok(false) };
        match fields.shift_remove(SHOW) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(show)) => Ok(show),
            Some(other) => Err(wrong(format!("{path}.{SHOW}"), "true or false", &other)),
        }
    }

    /// Returns the choice of a field at `path` in a body.
    pub(crate) fn choice(&self, path: &str) -> Result<RetainChoice> {
        match &self.0.0 {
            Value::String(text) if text.len() <= TEXT_BYTES_MAX => {
                text.parse().map_err(|error| fault(path, &error))
            }
            Value::Object(fields) => of_object(path, fields),
            other => Err(wrong(path, EXPECTED, other)),
        }
    }
}

/// Returns the error for an invalid retention in a field at `path`.
pub(crate) fn fault(path: &str, error: &RetentionError) -> ApiError {
    ApiError::field(format!("{path}.{}", error.field()), format!("{path}.{error}"))
}

/// Returns the error for a retention in a field at `path` that the server does not allow.
pub(crate) fn refused(path: &str, refusal: &RetainRefusal) -> ApiError {
    ApiError::field(format!("{path}.{}", refusal.field()), format!("{path}.{refusal}"))
}

/// Reads the choice from an object. A null counts as absent, as in all bodies.
fn of_object(path: &str, fields: &Map<String, Value>) -> Result<RetainChoice> {
    let there = fields.iter().filter(|(_, value)| !value.is_null());
    let mut texts: BTreeMap<&str, String> =
        there.map(|(name, value)| Ok((name.as_str(), text(path, name, value)?))).collect::<Result<_>>()?;
    let Some(policy) = texts.remove("policy") else {
        let known = Policy::names().join(", ");
        let at = format!("{path}.policy");
        let message = format!("`{at}` is missing; name a policy: {known}, auto or none");
        return Err(ApiError::field(&at, message));
    };
    let choice = match policy.as_str() {
        RetainChoice::EVERYTHING => RetainChoice::Everything,
        RetainChoice::AUTO => {
            RetainChoice::auto(texts.remove("loss").as_deref()).map_err(|e| fault(path, &e))?
        }
        name => return chosen(name, texts).map(RetainChoice::Chosen).map_err(|error| fault(path, &error)),
    };
    match texts.keys().next() {
        None => Ok(choice),
        Some(name) => {
            let at = format!("{path}.{name}");
            Err(ApiError::field(
                &at,
                format!("`{at}` says nothing beside the policy `{policy}`; leave it out"),
            ))
        }
    }
}

/// Reads a policy with its `keep` and options.
fn chosen(name: &str, mut texts: BTreeMap<&str, String>) -> std::result::Result<Retention, RetentionError> {
    let policy: Policy = name.parse()?;
    let mut retention: Retention = policy.name().parse()?;
    if let Some(keep) = texts.remove("keep") {
        retention.keep = keep.parse()?;
    }
    for (option, value) in texts {
        retention.set(option, &value)?;
    }
    retention.check_fields()?;
    Ok(retention)
}

/// Converts the value of a field to the notation of a retention text.
fn text(path: &str, name: &str, value: &Value) -> Result<String> {
    let text = match value {
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Number(number) => Some(digits(number)),
        Value::String(text) => Some(text.clone()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    };
    text.filter(|text| text.len() <= TEXT_BYTES_MAX)
        .ok_or_else(|| wrong(format!("{path}.{name}"), SCALAR, value))
}

/// Formats a number without an exponent: 512.0 becomes 512, as some clients send floats.
fn digits(number: &Number) -> String {
    match number.as_f64() {
        Some(x) if number.is_f64() => whole(x).map_or_else(|| x.to_string(), |n| n.to_string()),
        _ => number.to_string(),
    }
}

#[cfg(test)]
impl schemars::JsonSchema for RetainField {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Retain".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let names =
            Policy::ALL.iter().map(Policy::name).chain([RetainChoice::AUTO, RetainChoice::EVERYTHING]);
        let names: Vec<&str> = names.collect();
        let of_policy = |policy: &Policy| policy.name().parse::<Retention>().ok();
        let options = Policy::ALL.iter().filter_map(of_policy).flat_map(|retention| retention.option_names());
        let scalar = serde_json::json!({"type": ["string", "number", "boolean"]});
        let mut properties: Map<String, Value> =
            options.chain(["loss"]).map(|name| (name.to_owned(), scalar.clone())).collect();
        properties.insert("policy".to_owned(), serde_json::json!({"enum": names}));
        let keep = "A share as 0.5, tokens as 512, or bytes as \"64MiB\"";
        let show = "Say in `kvik.retain` of the answer which positions each head kept; not of a kept prompt";
        properties.insert(SHOW.to_owned(), serde_json::json!({"type": "boolean", "description": show}));
        properties.insert(
            "keep".to_owned(),
            serde_json::json!({"type": ["number", "string"], "description": keep}),
        );
        schemars::json_schema!({"anyOf": [
            {"type": "string", "maxLength": TEXT_BYTES_MAX, "examples": ["snapkv:0.5", "kvzip:0.25,budget=all", "auto", "none"]},
            {"type": "object", "properties": properties, "required": ["policy"], "additionalProperties": false},
        ]})
    }
}

#[cfg(test)]
mod tests;
