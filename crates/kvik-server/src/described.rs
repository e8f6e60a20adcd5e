//! The derive macro for types in `openapi.json`: schemars' derive and trait in tests, which check the document against
//! the types, and an empty derive elsewhere.

#[cfg(not(test))]
pub(crate) use kvik_schema::JsonSchema;
#[cfg(test)]
pub(crate) use schemars::JsonSchema;
#[cfg(test)]
use schemars::{Schema, SchemaGenerator};

/// Implemented by every type: no schemas are generated here.
#[cfg(not(test))]
pub(crate) trait JsonSchema {}

#[cfg(not(test))]
impl<T: ?Sized> JsonSchema for T {}

/// Generates the schema of one type, in builds that generate the document.
#[derive(Clone, Copy)]
pub(crate) struct SchemaOf {
    #[cfg(test)]
    pub(crate) schema: fn(&mut SchemaGenerator) -> Schema,
}

impl SchemaOf {
    /// The schema generator of a type.
    pub(crate) const fn of<T: JsonSchema>() -> SchemaOf {
        SchemaOf {
            #[cfg(test)]
            schema: |generator| generator.subschema_for::<T>(),
        }
    }
}
