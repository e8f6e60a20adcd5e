//! Bodies are read in parts: structs that each take the fields that they declare.
//!
//! What several endpoints understand is one struct, and an endpoint's body is a tuple of those and its own. A field that
//! none of them declares is ignored, in every dialect, and the answer says so: see [`Body::notes`].

use serde::de::DeserializeOwned;
#[cfg(test)]
use serde_json::{Map, Value};

use crate::{
    described::{JsonSchema, SchemaOf},
    http::{error::ApiError, json::Body},
};

/// One struct of fields.
pub(crate) trait Part: DeserializeOwned + JsonSchema {}

/// What is read from the fields of a body.
pub(crate) trait FromBody: Sized {
    /// Reads it.
    fn from_body(body: &Body) -> Result<Self, ApiError>;

    /// Adds its fields to the schema of a body.
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

            #[cfg(test)]
            fn describe(generator: &mut schemars::SchemaGenerator, schema: &mut serde_json::Map<String, serde_json::Value>) {
                $($part::describe(generator, schema);)*
            }
        }
    )*};
}

tuples! { (A, B) (A, B, C) (A, B, C, D) (A, B, C, D, E) }

/// How a body is described.
pub(crate) fn described<T: FromBody>() -> SchemaOf {
    SchemaOf {
        #[cfg(test)]
        schema: schema::<T>,
    }
}

/// The schema of a body.
#[cfg(test)]
pub(crate) fn schema<T: FromBody>(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut schema = Map::new();
    T::describe(generator, &mut schema);
    schema.into()
}
