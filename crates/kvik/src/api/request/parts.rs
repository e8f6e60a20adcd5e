//! Bodies are read in parts: structs that each take the fields that they declare.
//!
//! What several endpoints understand is one struct, and an endpoint's body is a tuple of those and its own.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::http::{error::ApiError, json::Body};

/// One struct of fields.
pub(crate) trait Part: DeserializeOwned + JsonSchema {}

/// What is read from the fields of a body.
pub(crate) trait FromBody: Sized {
    /// Reads it.
    fn from_body(body: &Body) -> Result<Self, ApiError>;

    /// Adds its fields to the schema of a body.
    fn describe(generator: &mut SchemaGenerator, schema: &mut Map<String, Value>);
}

impl<T: Part> FromBody for T {
    fn from_body(body: &Body) -> Result<T, ApiError> {
        body.read()
    }

    fn describe(generator: &mut SchemaGenerator, schema: &mut Map<String, Value>) {
        let Value::Object(part) = T::json_schema(generator).to_value() else { return };
        // A part describes itself, not the body.
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

            fn describe(generator: &mut SchemaGenerator, schema: &mut Map<String, Value>) {
                $($part::describe(generator, schema);)*
            }
        }
    )*};
}

tuples! { (A, B) (A, B, C) (A, B, C, D) (A, B, C, D, E) }

/// Refuses a body with a field that none of its parts declare, for dialects whose own servers do.
pub(crate) fn refuse_unknown<T: FromBody>(body: &Body) -> Result<(), ApiError> {
    let schema = schema::<T>(&mut SchemaGenerator::default());
    let known = |name: &str| schema.pointer("/properties").is_some_and(|fields| fields.get(name).is_some());
    match body.names().find(|name| !known(name)) {
        Some(name) => Err(ApiError::field(name, format!("`{name}` is not known here; leave it out"))),
        None => Ok(()),
    }
}

/// The schema of a body.
pub(crate) fn schema<T: FromBody>(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = Map::new();
    T::describe(generator, &mut schema);
    schema.into()
}
