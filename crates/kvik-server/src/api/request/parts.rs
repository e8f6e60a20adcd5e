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

tuples! { (A, B) (A, B, C) (A, B, C, D) (A, B, C, D, E) }

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
    schema.into()
}
