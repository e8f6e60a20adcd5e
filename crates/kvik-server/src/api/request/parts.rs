//! Bodies are read in parts: structs that each take the fields that they declare.
//!
//! A struct holds the fields that several endpoints share, and an endpoint's body is a tuple of such structs
//! and its own. A field that none of them declares is ignored, in every dialect, and the answer reports it:
//! see [`Body::notes`].

use serde::de::DeserializeOwned;
#[cfg(test)]
use serde_json::{Map, Value};

use crate::{
    described::{JsonSchema, SchemaOf},
    http::{error::ApiError, json::Body},
};

/// A struct of body fields.
pub(crate) trait Part: DeserializeOwned + JsonSchema {}

/// A value that is read from the fields of a body.
pub(crate) trait FromBody: Sized {
    /// Reads the value.
    fn from_body(body: &Body) -> Result<Self, ApiError>;

    /// Adds the fields to the schema of a body.
    #[cfg(test)]
    fn describe(generator: &mut schemars::SchemaGenerator, schema: &mut Map<String, Value>);
}

impl<T: Part> FromBody for T {
    fn from_body(body: &Body) -> Result<T, ApiError> {
        body.read()
    }

    #[cfg(test)]
    fn describe(generator: &mut schemars::SchemaGenerator, schema: &mut Map<String, Value>) {
        let Value::Object(part) = T::json_schema(generator).to_value() else { return };
        // The description of a part is not that of the body.
        for (name, value) in part.into_iter().filter(|(name, _)| name != "description" && name != "title") {
            match (schema.get_mut(&name), value) {
                (Some(Value::Object(all)), Value::Object(more)) => all.extend(more),
                (Some(Value::Array(all)), Value::Array(more)) => all.extend(more),
                (None, value) => {
                    schema.insert(name, value);
                }
                (Some(_), _) => {}
            }
        }
    }
}

macro_rules! tuples {
    ($(($($part:ident),*))*) => {$(
        impl<$($part: FromBody),*> FromBody for ($($part,)*) {
            fn from_body(body: &Body) -> Result<Self, ApiError> {
                Ok(($($part::from_body(body)?,)*))
            }

            #[cfg(test)]
            fn describe(generator: &mut schemars::SchemaGenerator, schema: &mut serde_json::Map<String, serde_json::Value>) {
                $($part::describe(generator, schema);)*
            }
        }
    )*};
}

tuples! { (A, B) (A, B, C) (A, B, C, D) (A, B, C, D, E) (A, B, C, D, E, F) }

/// Returns the schema of a body.
pub(crate) fn described<T: FromBody>() -> SchemaOf {
    SchemaOf {
        #[cfg(test)]
        schema: schema::<T>,
    }
}

/// Generates the schema of a body.
#[cfg(test)]
pub(crate) fn schema<T: FromBody>(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut schema = Map::new();
    T::describe(generator, &mut schema);
    let properties = schema.get("properties").cloned().unwrap_or_default();
    if let Some(Value::Array(required)) = schema.get_mut("required") {
        // An explicit null counts as absent, so a field that accepts it may be absent.
        required.retain(|name| !accepts_null(&properties[name.as_str().unwrap_or_default()]));
    }
    schema.into()
}

/// Whether a schema says that null is valid.
#[cfg(test)]
fn accepts_null(schema: &Value) -> bool {
    let is_null = |name: &Value| name == "null";
    let named = &schema["type"];
    let by_type = is_null(named) || named.as_array().is_some_and(|names| names.iter().any(is_null));
    let of = |key: &str| schema[key].as_array().is_some_and(|any| any.iter().any(accepts_null));
    by_type || of("anyOf") || of("oneOf")
}

#[cfg(test)]
mod tests {
    use crate::api::openapi::DOCUMENT;

    use super::*;

    /// A client that is made of the document would have to send `tools` otherwise.
    #[test]
    fn only_messages_are_required_of_a_chat() {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        let body = &document["paths"]["/v1/chat/completions"]["post"]["requestBody"];
        let mut schema = &body["content"]["application/json"]["schema"];
        if let Some(path) = schema["$ref"].as_str() {
            schema = document.pointer(path.trim_start_matches('#')).unwrap();
        }
        assert_eq!(schema["required"], serde_json::json!(["messages"]));
    }
}
