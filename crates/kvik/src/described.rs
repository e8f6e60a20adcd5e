//! Types of bodies and answers that `openapi.json` describes: schemars' derive and trait in tests, which hold the document
//! to the types, and a derive that writes nothing elsewhere.

#[cfg(not(test))]
pub(crate) use kvik_schema::JsonSchema;
#[cfg(test)]
pub(crate) use schemars::JsonSchema;
#[cfg(test)]
use schemars::{Schema, SchemaGenerator};

/// Any type: nothing asks how it is described.
#[cfg(not(test))]
pub(crate) trait JsonSchema {}

#[cfg(not(test))]
impl<T: ?Sized> JsonSchema for T {}

/// Makes the schema of one type, where the document is made.
#[derive(Clone, Copy)]
pub(crate) struct SchemaOf {
    #[cfg(test)]
    pub(crate) schema: fn(&mut SchemaGenerator) -> Schema,
}

impl SchemaOf {
    /// The schema of a type as it is sent.
    pub(crate) const fn of<T: JsonSchema>() -> SchemaOf {
        SchemaOf {
            #[cfg(test)]
            schema: |generator| generator.subschema_for::<T>(),
        }
    }
}
