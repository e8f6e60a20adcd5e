//! The compaction item as answers present it; its content is opaque here.

use serde::Serialize;
use serde_json::Value;

use crate::{described::JsonSchema, http::answer::words};

words! {
    CompactionWord = "compaction";
}

/// Stands for all that was said before; a client sends it back in its place.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct CompactionItem {
    pub(crate) id: String,
    r#type: CompactionWord,
    pub(crate) encrypted_content: String,
}

impl CompactionItem {
    /// Converts an item that was sealed by the memory.
    pub(crate) fn of(sealed: &Value) -> CompactionItem {
        let text = |name: &str| sealed[name].as_str().unwrap_or_default().to_owned();
        CompactionItem {
            id: text("id"),
            r#type: CompactionWord,
            encrypted_content: text("encrypted_content"),
        }
    }
}
