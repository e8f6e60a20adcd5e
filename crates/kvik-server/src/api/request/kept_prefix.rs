//! `kvik.kept_prefix`: the compressed prefix with which a request's prompt begins.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, Visitor},
};

use crate::app::kept_prefix::KeptPrefix;

/// The field: a name, true, or false, which is equivalent to absence.
#[derive(Debug, Default)]
pub(super) struct KeptPrefixField(pub(super) Option<KeptPrefix>);

impl<'de> Deserialize<'de> for KeptPrefixField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<KeptPrefixField, D::Error> {
        deserializer.deserialize_any(FieldVisitor)
    }
}

struct FieldVisitor;

impl Visitor<'_> for FieldVisitor {
    type Value = KeptPrefixField;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a kept prompt, or true for any prefix of which a part is kept")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<KeptPrefixField, E> {
        Ok(KeptPrefixField(Some(KeptPrefix::Named(name.to_owned()))))
    }

    fn visit_bool<E: de::Error>(self, any: bool) -> Result<KeptPrefixField, E> {
        Ok(KeptPrefixField(any.then_some(KeptPrefix::Any)))
    }
}

#[cfg(test)]
impl schemars::JsonSchema for KeptPrefixField {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "KeptPrefix".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"anyOf": [{"type": "string"}, {"type": "boolean"}]})
    }
}
