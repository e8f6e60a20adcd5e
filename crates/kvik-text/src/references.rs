//! Schemas that are embedded in other schemas.

use serde_json::Value;

/// Prefixes the references of a schema, which start at its root (`#/$defs/item`), with its new location
/// `to`.
pub(super) fn move_references(schema: &mut Value, to: &str) {
    match schema {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(text) if key == "$ref" && text.starts_with('#') => {
                        *text = format!("{to}{}", &text[1..]);
                    }
                    other => move_references(other, to),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| move_references(item, to)),
        _ => {}
    }
}
