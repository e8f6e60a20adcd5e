//! Shapes of Anthropic's answers, for the document of all routes.

use serde_json::{Value, json};

use crate::api::shapes::{kind, kvik, list, nullable, object};

/// Of `/v1/messages`.
pub(super) fn message() -> Value {
    let usage = object([
        ("input_tokens", kind("integer")),
        ("cache_creation_input_tokens", kind("integer")),
        ("cache_read_input_tokens", kind("integer")),
        ("output_tokens", kind("integer")),
    ]);
    object([
        ("id", kind("string")),
        ("type", json!({"const": "message"})),
        ("role", json!({"const": "assistant"})),
        ("model", kind("string")),
        ("content", list(kind("object"))),
        ("stop_reason", nullable("string")),
        ("stop_sequence", nullable("string")),
        ("usage", usage),
        ("diagnostics", kind("object")),
        ("context_management", kind("object")),
        ("kvik", kvik()),
    ])
}

/// Of `/v1/messages/count_tokens`.
pub(super) fn count() -> Value {
    object([("input_tokens", kind("integer"))])
}
