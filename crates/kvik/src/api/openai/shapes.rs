//! Shapes of OpenAI's answers, for the document of all routes.

use serde_json::{Value, json};

use crate::api::shapes::{kind, kvik, list, nullable, object, timings, usage};

/// What both completion endpoints answer, with choices of this shape.
fn completion(object_name: &str, choice: Value) -> Value {
    object([
        ("id", kind("string")),
        ("object", json!({"const": object_name})),
        ("created", kind("integer")),
        ("model", kind("string")),
        ("system_fingerprint", kind("string")),
        ("choices", list(choice)),
        ("usage", usage()),
        ("timings", timings()),
        ("kvik", kvik()),
        ("prompt_cache_diagnostics", kind("object")),
    ])
}

/// Of `/v1/chat/completions`.
pub(super) fn chat() -> Value {
    let message = object([
        ("role", json!({"const": "assistant"})),
        ("content", nullable("string")),
        ("refusal", kind("null")),
        ("reasoning_content", kind("string")),
        ("tool_calls", list(kind("object"))),
    ]);
    let choice = object([
        ("index", kind("integer")),
        ("message", message),
        ("logprobs", nullable("object")),
        ("finish_reason", json!({"enum": ["stop", "length", "tool_calls"]})),
    ]);
    completion("chat.completion", choice)
}

/// Of `/v1/chat/completions/input_tokens`.
pub(super) fn count() -> Value {
    object([("object", kind("string")), ("input_tokens", kind("integer"))])
}

/// Of `/v1/completions`.
pub(super) fn text() -> Value {
    let choice = object([
        ("index", kind("integer")),
        ("text", kind("string")),
        ("logprobs", nullable("object")),
        ("finish_reason", json!({"enum": ["stop", "length"]})),
    ]);
    completion("text_completion", choice)
}

/// One model.
pub(super) fn model() -> Value {
    object([
        ("id", kind("string")),
        ("object", json!({"const": "model"})),
        ("created", kind("integer")),
        ("owned_by", kind("string")),
        ("root", kind("string")),
        ("parent", kind("string")),
        ("meta", kind("object")),
    ])
}

/// All models.
pub(super) fn models() -> Value {
    object([("object", json!({"const": "list"})), ("data", list(model()))])
}
