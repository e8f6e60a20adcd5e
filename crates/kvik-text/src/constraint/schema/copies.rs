//! The budget of combinations: a value that one copies, or compares with a list of others, is charged before.
//!
//! A reference with siblings copies its target, an alternative copies the keywords beside it, and a definition is
//! copied under every spelling of its name: without a budget, 250 KB of schema become gigabytes.

use serde_json::{Map, Value};

use super::{Fields, Normaliser, Result, failed};

/// Maximum values that are copied or compared: 72 bytes each, and up to as many again for a property.
pub(super) const COPIES_MAX: usize = 200_000;
/// Bytes of text that are charged like a value.
const TEXT_BYTES: usize = 32;

impl Normaliser<'_> {
    /// Takes `values` from the budget.
    pub(super) fn charge(&mut self, values: usize, at: &str) -> Result<()> {
        let left = self.copies_left.checked_sub(values);
        self.copies_left = left.ok_or_else(|| {
            failed(at, format!("the schema copies more than {COPIES_MAX} values in its combinations"))
        })?;
        Ok(())
    }

    /// Copies a value.
    pub(super) fn copy(&mut self, value: &Value, at: &str) -> Result<Value> {
        self.charge(weight(value), at)?;
        Ok(value.clone())
    }

    /// Copies the keywords of a schema that are to be kept.
    pub(super) fn copy_fields(
        &mut self,
        fields: &Fields,
        is_kept: impl Fn(&str) -> bool,
        at: &str,
    ) -> Result<Fields> {
        let mut copy = Map::new();
        for (key, value) in fields {
            if is_kept(key.as_str()) {
                self.charge(text_weight(key), at)?;
                copy.insert(key.clone(), self.copy(value, at)?);
            }
        }
        Ok(copy)
    }
}

/// The values within a value, itself included, and its texts.
pub(super) fn weight(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
        Value::String(text) => 1 + text_weight(text),
        Value::Array(items) => 1 + items.iter().map(weight).sum::<usize>(),
        Value::Object(fields) => {
            1 + fields.iter().map(|(key, value)| text_weight(key) + weight(value)).sum::<usize>()
        }
    }
}

/// The charge for a text beside that for its value.
pub(super) fn text_weight(text: &str) -> usize {
    text.len() / TEXT_BYTES
}
