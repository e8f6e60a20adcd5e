//! Shapes of the answers of Responses, for the document of all routes.

use serde_json::{Value, json};

use crate::api::shapes::{kind, kvik, list, nullable, object, timings};

/// Of `/v1/responses`.
pub(super) fn response() -> Value {
    let usage = object([
        ("input_tokens", kind("integer")),
        ("input_tokens_details", object([("cached_tokens", kind("integer"))])),
        ("output_tokens", kind("integer")),
        ("output_tokens_details", object([("reasoning_tokens", kind("integer"))])),
        ("total_tokens", kind("integer")),
    ]);
    object([
        ("id", kind("string")),
        ("object", json!({"const": "response"})),
        ("created_at", kind("integer")),
        ("status", json!({"enum": ["completed", "incomplete", "in_progress", "failed"]})),
        ("incomplete_details", nullable("object")),
        ("model", kind("string")),
        ("output", list(kind("object"))),
        ("previous_response_id", nullable("string")),
        ("usage", usage),
        ("timings", timings()),
        ("kvik", kvik()),
        ("prompt_cache_diagnostics", kind("object")),
    ])
}

/// Of `/v1/responses/compact`.
pub(super) fn compaction() -> Value {
    object([
        ("id", kind("string")),
        ("object", json!({"const": "response.compaction"})),
        ("output", list(kind("object"))),
        ("usage", kind("object")),
    ])
}

/// Of `/v1/responses/input_tokens`.
pub(super) fn count() -> Value {
    object([("object", json!({"const": "response.input_tokens"})), ("input_tokens", kind("integer"))])
}

/// Of a response that was deleted.
pub(super) fn deleted() -> Value {
    object([("id", kind("string")), ("deleted", json!({"const": true}))])
}

/// Of the items that a response was given.
pub(super) fn items() -> Value {
    object([
        ("object", json!({"const": "list"})),
        ("data", list(kind("object"))),
        ("has_more", kind("boolean")),
    ])
}
