//! Shapes of Ollama's answers, for the document of all routes.

use serde_json::Value;

use crate::api::shapes::{kind, kvik, list, object};

/// Of `/api/chat`.
pub(super) fn chat() -> Value {
    let message = object([
        ("role", kind("string")),
        ("content", kind("string")),
        ("thinking", kind("string")),
        ("tool_calls", list(kind("object"))),
    ]);
    object([
        ("model", kind("string")),
        ("created_at", kind("string")),
        ("message", message),
        ("done", kind("boolean")),
        ("done_reason", kind("string")),
        ("prompt_eval_count", kind("integer")),
        ("eval_count", kind("integer")),
        ("kvik", kvik()),
    ])
}

/// Of `/api/generate`.
pub(super) fn generated() -> Value {
    object([
        ("model", kind("string")),
        ("created_at", kind("string")),
        ("response", kind("string")),
        ("thinking", kind("string")),
        ("context", list(kind("integer"))),
        ("done", kind("boolean")),
        ("done_reason", kind("string")),
        ("prompt_eval_count", kind("integer")),
        ("eval_count", kind("integer")),
        ("kvik", kvik()),
    ])
}

/// Of `/api/embed`.
pub(super) fn embedded() -> Value {
    object([
        ("model", kind("string")),
        ("embeddings", list(list(kind("number")))),
        ("prompt_eval_count", kind("integer")),
    ])
}

/// Of `/api/embeddings`.
pub(super) fn embedding() -> Value {
    object([("embedding", list(kind("number")))])
}

/// Of `/api/tags` and `/api/ps`.
pub(super) fn models() -> Value {
    let model = object([
        ("name", kind("string")),
        ("size", kind("integer")),
        ("digest", kind("string")),
        ("details", kind("object")),
    ]);
    object([("models", list(model))])
}

/// Of `/api/show`.
pub(super) fn shown() -> Value {
    object([
        ("template", kind("string")),
        ("details", kind("object")),
        ("model_info", kind("object")),
        ("capabilities", list(kind("string"))),
    ])
}

/// Of `/api/version`.
pub(super) fn version() -> Value {
    object([("version", kind("string"))])
}

/// Of what is refused.
pub(super) fn refused() -> Value {
    object([("error", kind("string"))])
}
