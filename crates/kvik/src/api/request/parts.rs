//! Bodies are read in parts: structs that each take the fields that they declare.
//!
//! What several endpoints understand is one struct, and an endpoint's body is a tuple of those and its own.

use serde::{
    Deserializer,
    de::{self, DeserializeOwned, Visitor},
    forward_to_deserialize_any,
};
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

    /// Adds the names of its fields.
    fn name(fields: &mut Vec<&'static str>);

    /// Adds its fields to the schema of a body.
    #[cfg(test)]
    fn describe(generator: &mut schemars::SchemaGenerator, schema: &mut Map<String, Value>);
}

impl<T: Part> FromBody for T {
    fn from_body(body: &Body) -> Result<T, ApiError> {
        body.read()
    }

    fn name(fields: &mut Vec<&'static str>) {
        fields.extend(declared::<T>());
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

            fn name(fields: &mut Vec<&'static str>) {
                $($part::name(fields);)*
            }

            #[cfg(test)]
            fn describe(generator: &mut schemars::SchemaGenerator, schema: &mut serde_json::Map<String, serde_json::Value>) {
                $($part::describe(generator, schema);)*
            }
        }
    )*};
}

tuples! { (A, B) (A, B, C) (A, B, C, D) (A, B, C, D, E) }

/// Refuses a body with a field that none of its parts declare, for dialects whose own servers do.
pub(crate) fn refuse_unknown<T: FromBody>(body: &Body) -> Result<(), ApiError> {
    let mut known = Vec::new();
    T::name(&mut known);
    match body.names().find(|name| !known.contains(name)) {
        Some(name) => Err(ApiError::field(name, format!("`{name}` is not known here; leave it out"))),
        None => Ok(()),
    }
}

/// The fields that a struct asks its reader for, also under their other names.
fn declared<T: DeserializeOwned>() -> &'static [&'static str] {
    struct Asked<'a>(&'a mut &'static [&'static str]);

    impl<'de> Deserializer<'de> for Asked<'_> {
        type Error = de::value::Error;

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            _: V,
        ) -> Result<V::Value, Self::Error> {
            *self.0 = fields;
            Err(de::Error::custom("only the names are wanted"))
        }

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
            Err(de::Error::custom("it is no struct"))
        }

        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
            unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    let mut fields: &[&str] = &[];
    // It ends with the names, as an error: there is no value to read.
    let _ = T::deserialize(Asked(&mut fields));
    fields
}

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
    let mut named = Vec::new();
    T::name(&mut named);
    for field in schema.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys) {
        assert!(
            named.contains(&field.as_str()),
            "`{field}` is described, and refused as unknown where others are"
        );
    }
    schema.into()
}
