//! Shapes of answers, for the document of all routes.

use serde_json::{Value, json};

use crate::api::shapes::{kind, list, object, timings};

fn usage() -> Value {
    object([
        ("prompt_tokens", kind("integer")),
        ("total_tokens", kind("integer")),
        ("prompt_tokens_details", object([("cached_tokens", kind("integer"))])),
        ("cost", kind("object")),
    ])
}

/// What the cache did with all prompts together; with one prompt as in every other answer.
fn kvik() -> Value {
    let cache = object([
        ("prompts", kind("integer")),
        ("prompt_tokens", kind("integer")),
        ("cached_tokens", kind("integer")),
        ("by_tier", object([("ram", kind("integer")), ("disk", kind("integer"))])),
        ("reasons", json!({"type": "object", "additionalProperties": {"type": "integer"}})),
    ]);
    object([("cache", cache)])
}

/// Of `/v1/embeddings`.
pub(super) fn embeddings() -> Value {
    let base64 = json!({"type": "string", "contentEncoding": "base64"});
    let embedding = object([
        ("object", json!({"const": "embedding"})),
        ("index", kind("integer")),
        ("embedding", json!({"anyOf": [list(kind("number")), base64]})),
    ]);
    object([
        ("object", json!({"const": "list"})),
        ("data", list(embedding)),
        ("model", kind("string")),
        ("usage", usage()),
        ("timings", timings()),
        ("kvik", kvik()),
    ])
}

/// Of `/embedding`.
pub(super) fn llama() -> Value {
    list(object([("index", kind("integer")), ("embedding", list(list(kind("number"))))]))
}

/// Of `/v1/rerank`.
pub(super) fn rerank() -> Value {
    let result = object([
        ("index", kind("integer")),
        ("relevance_score", kind("number")),
        ("document", object([("text", kind("string"))])),
    ]);
    object([
        ("object", json!({"const": "list"})),
        ("model", kind("string")),
        ("results", list(result)),
        ("usage", usage()),
        ("timings", timings()),
        ("kvik", kvik()),
    ])
}
