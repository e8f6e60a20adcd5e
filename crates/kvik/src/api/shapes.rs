//! Shapes of what the answers of several dialects carry, for the document of all routes.

use serde_json::{Map, Value, json};

/// An object whose fields have these schemas.
pub(super) fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let properties: Map<String, Value> =
        fields.map(|(name, schema)| (name.to_owned(), schema)).into_iter().collect();
    json!({"type": "object", "properties": properties})
}

/// A value of one kind, which may be absent.
pub(super) fn kind(kind: &str) -> Value {
    json!({"type": kind})
}

/// The same, or null.
pub(super) fn nullable(kind: &str) -> Value {
    json!({"type": [kind, "null"]})
}

/// An array.
pub(super) fn list(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

/// OpenAI's `usage`.
pub(super) fn usage() -> Value {
    object([
        ("prompt_tokens", kind("integer")),
        ("completion_tokens", kind("integer")),
        ("total_tokens", kind("integer")),
        ("prompt_tokens_details", object([("cached_tokens", kind("integer"))])),
        ("cost", kind("object")),
    ])
}

/// llama-server's `timings`.
pub(super) fn timings() -> Value {
    object([
        ("cache_n", kind("integer")),
        ("prompt_n", kind("integer")),
        ("prompt_ms", kind("number")),
        ("predicted_n", kind("integer")),
        ("predicted_ms", kind("number")),
        ("draft_n", kind("integer")),
        ("draft_n_accepted", kind("integer")),
    ])
}

/// kvik's own object: what the cache did.
pub(super) fn kvik() -> Value {
    let report = object([
        ("prompt_tokens", kind("integer")),
        ("cached_tokens", kind("integer")),
        ("by_tier", object([("ram", kind("integer")), ("disk", kind("integer"))])),
        ("stopped_at", nullable("object")),
        ("reason", nullable("string")),
        ("evicted", kind("object")),
    ]);
    let cache = json!({"anyOf": [report, {"type": "array"}, {"type": "null"}]});
    object([
        ("cache", cache),
        ("retain", json!({"anyOf": [retained(), {"type": "array"}]})),
        (
            "conversation",
            object([("id", kind("string")), ("name", nullable("string")), ("messages", kind("integer"))]),
        ),
        ("schema_notes", list(kind("string"))),
    ])
}

/// What was kept of the tokens of a prompt with a retention.
pub(super) fn retained() -> Value {
    let positions = object([
        ("layers", kind("integer")),
        ("heads", kind("integer")),
        ("tokens", kind("integer")),
        ("kept", list(list(list(kind("integer"))))),
    ]);
    let loss = object([
        ("mean_percent", kind("number")),
        ("worst_percent", kind("number")),
        ("worst_task", kind("string")),
        ("cases", kind("integer")),
    ]);
    object([
        ("policy", kind("string")),
        ("tokens", kind("integer")),
        ("positions_kept", kind("integer")),
        ("positions_dropped", kind("integer")),
        ("share_kept", kind("number")),
        ("smallest_head", kind("integer")),
        ("largest_head", kind("integer")),
        ("tightened", kind("integer")),
        ("positions", positions),
        ("loss", loss),
        ("measured", kind("boolean")),
    ])
}
