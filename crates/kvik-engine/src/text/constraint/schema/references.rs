//! Schemas that are put into others.

use serde_json::Value;

/// A schema refers to its own parts from its root (`#/$defs/item`); that root is at `to` now.
pub fn move_references(schema: &mut Value, to: &str) {
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
