//! Shapes of the answers of kvik's own routes, for the document of all routes.

use serde_json::{Value, json};

use crate::api::shapes::{kind, list, nullable, object, retained};

fn named<const N: usize>(name: &str, fields: [(&str, Value); N]) -> Value {
    let mut schema = object(fields);
    schema["properties"]["object"] = json!({"const": name});
    schema
}

/// Of `GET /v1/cache`.
pub(super) fn cache() -> Value {
    let prefix = object([
        ("text", nullable("string")),
        ("tokens", kind("integer")),
        ("blocks", kind("integer")),
        ("bytes", kind("integer")),
        ("hits", kind("integer")),
        ("tenant", nullable("string")),
        ("in_use", kind("boolean")),
        ("idle_s", nullable("number")),
        ("pinned", kind("boolean")),
        ("priority", kind("integer")),
        ("expires_in_s", nullable("number")),
    ]);
    named("cache", [("prefixes", list(prefix)), ("ram", kind("object")), ("disk", nullable("object"))])
}

/// Of `DELETE /v1/cache`.
pub(super) fn cleared() -> Value {
    let blocks = object([("ram", kind("integer")), ("disk", kind("integer"))]);
    named("cache.cleared", [("blocks", blocks)])
}

/// Of `POST /v1/cache/explain`.
pub(super) fn explained() -> Value {
    object([("kvik", crate::api::shapes::kvik())])
}

/// Of `POST /v1/cache/evict`.
pub(super) fn evicted() -> Value {
    let counts = [("tokens", kind("integer")), ("blocks", kind("integer")), ("pins", kind("integer"))];
    let [tokens, blocks, pins] = counts;
    named("cache.evicted", [tokens, blocks, pins, ("prompts", list(kind("string")))])
}

/// Of `POST /v1/cache/pin`.
pub(super) fn pinned() -> Value {
    let fields =
        [("tokens", kind("integer")), ("computed_tokens", kind("integer")), ("usage", kind("object"))];
    named("cache.pinned", fields)
}

/// Of `GET /v1/cache/pins`.
pub(super) fn pins() -> Value {
    let pin = object([
        ("id", kind("integer")),
        ("text", nullable("string")),
        ("tokens", kind("integer")),
        ("blocks", kind("integer")),
        ("bytes", kind("integer")),
        ("tenant", nullable("string")),
    ]);
    named("list", [("data", list(pin)), ("blocks", kind("object"))])
}

/// Of `DELETE /v1/cache/pins`.
pub(super) fn unpinned() -> Value {
    named("cache.unpinned", [("pins", kind("integer"))])
}

/// Of `GET /v1/prompts/{name}`.
pub(super) fn prompt() -> Value {
    named(
        "prompt",
        [
            ("name", kind("string")),
            ("tokens", kind("integer")),
            ("sha256", kind("string")),
            ("public", kind("boolean")),
            ("builds", kind("integer")),
            ("cached", kind("boolean")),
            ("pinned", kind("boolean")),
            ("ram", kind("integer")),
            ("disk", kind("integer")),
            ("changed", kind("boolean")),
            ("retain", retained()),
        ],
    )
}

/// Of `PUT /v1/prompts/{name}`.
pub(super) fn kept() -> Value {
    named(
        "prompt",
        [
            ("name", kind("string")),
            ("tokens", kind("integer")),
            ("sha256", kind("string")),
            ("public", kind("boolean")),
            ("built", kind("boolean")),
            ("computed_tokens", kind("integer")),
            ("cached_tokens", kind("integer")),
            ("usage", nullable("object")),
            ("retain", retained()),
        ],
    )
}

/// Of `DELETE /v1/prompts/{name}`.
pub(super) fn deleted() -> Value {
    named("prompt.deleted", [("name", kind("string")), ("deleted", kind("boolean"))])
}

/// Of `GET /v1/prompts`.
pub(super) fn prompts() -> Value {
    named("list", [("data", list(prompt()))])
}

/// Of a conversation without what was said in it.
pub(super) fn conversation() -> Value {
    named(
        "conversation",
        [
            ("id", kind("string")),
            ("name", nullable("string")),
            ("created", kind("integer")),
            ("updated", kind("integer")),
            ("messages", kind("integer")),
            ("bytes", kind("integer")),
        ],
    )
}

/// Of `GET /v1/conversations/{id}`.
pub(super) fn read_conversation() -> Value {
    let mut read = conversation();
    read["properties"]["messages"] = list(kind("object"));
    read
}

/// Of `GET /v1/conversations`.
pub(super) fn conversations() -> Value {
    named("list", [("data", list(conversation())), ("has_more", kind("boolean"))])
}

/// Of `DELETE /v1/conversations/{id}`.
pub(super) fn deleted_conversation() -> Value {
    named("conversation.deleted", [("id", kind("string")), ("deleted", kind("boolean"))])
}

/// Of `GET /v1/conversations/{id}/memory`.
pub(super) fn conversation_memory() -> Value {
    let mut summary = object([
        ("text", kind("string")),
        ("covers", kind("integer")),
        ("messages", list(kind("integer"))),
        ("age_s", kind("integer")),
        ("updates", kind("integer")),
        ("corrected", kind("boolean")),
        ("failed", nullable("string")),
    ]);
    summary["type"] = json!(["object", "null"]);
    named("conversation.memory", [("id", kind("string")), ("summary", summary)])
}

/// Of `GET /v1/conversations/{id}/export`.
pub(super) fn exported_conversation() -> Value {
    object([("name", nullable("string")), ("messages", list(kind("object")))])
}

/// Of `GET /v1/usage`.
pub(super) fn usage() -> Value {
    named("list", [("data", list(kind("object"))), ("unreadable", list(kind("string")))])
}
