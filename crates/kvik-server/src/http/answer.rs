//! Serialisation of answers. Answers are types, so that what is sent agrees with the document of all routes.

use serde::Serialize;
use serde_json::Value;

use crate::described::JsonSchema;

/// Converts an answer to a value, where fields of it are still selected or it is one of several frames.
pub fn value(answer: &impl Serialize) -> Value {
    serde_json::to_value(answer).expect("the names of an answer's fields are text")
}

/// Serialises an answer as JSON without an intermediate value, which would take ten times its length with
/// log-probabilities.
pub(crate) fn written(answer: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(answer).expect("the names of an answer's fields are text")
}

/// A single one as it is, several as an array.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub(crate) enum OneOrAll<T> {
    One(T),
    All(Vec<T>),
}

impl<T> From<Vec<T>> for OneOrAll<T> {
    fn from(mut all: Vec<T>) -> OneOrAll<T> {
        if all.len() == 1 { OneOrAll::One(all.remove(0)) } else { OneOrAll::All(all) }
    }
}

/// Defines types with a single value, a word, as dialects write it into `object`, `type` and `role`.
macro_rules! words {
    ($($(#[$attribute:meta])* $name:ident = $word:literal;)*) => {$(
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub(crate) struct $name;

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
                serializer.serialize_str($word)
            }
        }

        #[cfg(test)]
        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({"type": "string", "const": $word})
            }
        }
    )*};
}

pub(crate) use words;
