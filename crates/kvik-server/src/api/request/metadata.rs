//! `metadata`: data that a client stores with a conversation, or is given back with a response.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::http::{
    error::ApiError,
    json::{Json as Any, wrong},
};

/// Maximum number of pairs in `metadata`, and of characters in their keys and values: OpenAI's limits.
const PAIRS_MAX: usize = 16;
const KEY_CHARS_MAX: usize = 64;
const VALUE_CHARS_MAX: usize = 512;

/// Reads the names and texts of the field.
///
/// # Errors
/// If it is not an object of texts, or exceeds the limits.
pub(crate) fn metadata(field: &Any) -> Result<BTreeMap<String, String>, ApiError> {
    const FIELD: &str = "metadata";
    let Value::Object(pairs) = &field.0 else { return Err(wrong(FIELD, "an object", &field.0)) };
    let refused = |path: String, text: String| Err(ApiError::field(&path, format!("`{path}` {text}")));
    if pairs.len() > PAIRS_MAX {
        return refused(FIELD.to_owned(), format!("has {} pairs, the limit is {PAIRS_MAX}", pairs.len()));
    }
    let mut kept = BTreeMap::new();
    for (name, value) in pairs {
        let path = || format!("{FIELD}.{}", name.chars().take(KEY_CHARS_MAX).collect::<String>());
        if name.chars().count() > KEY_CHARS_MAX {
            return refused(path(), format!("has a name of more than {KEY_CHARS_MAX} characters"));
        }
        let text = value.as_str().ok_or_else(|| wrong(path(), "a string", value))?;
        if text.chars().count() > VALUE_CHARS_MAX {
            return refused(path(), format!("has more than {VALUE_CHARS_MAX} characters"));
        }
        kept.insert(name.clone(), text.to_owned());
    }
    Ok(kept)
}
