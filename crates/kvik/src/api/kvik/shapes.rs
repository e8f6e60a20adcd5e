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

/// Of `GET /v1/cache/tree`.
pub(super) fn tree() -> Value {
    let mut node = life();
    let fields = object([
        ("id", kind("string")),
        ("parent", nullable("string")),
        ("tenant", nullable("string")),
        ("start", kind("integer")),
        ("tokens", kind("integer")),
        ("weight", kind("integer")),
        ("children", kind("integer")),
        ("folded", object([("nodes", kind("integer")), ("tokens", kind("integer"))])),
        ("ram_tokens", kind("integer")),
        ("disk_tokens", kind("integer")),
        ("in_use", kind("boolean")),
    ]);
    add(&mut node, fields);
    named(
        "cache.tree",
        [
            ("block_tokens", kind("integer")),
            ("block_bytes", kind("integer")),
            ("nodes_total", kind("integer")),
            ("tokens_total", kind("integer")),
            ("truncated", kind("boolean")),
            ("nodes", list(node)),
        ],
    )
}

/// Of `GET /v1/cache/tree/{id}`.
pub(super) fn node() -> Value {
    let why = object([("kept", kind("string")), ("sentence", kind("string"))]);
    let tokens = json!({"type": ["array", "null"], "items": kind("integer")});
    let mut node = named(
        "cache.node",
        [
            ("id", kind("string")),
            ("text", nullable("string")),
            ("text_truncated", kind("boolean")),
            ("start", kind("integer")),
            ("tokens", kind("integer")),
            ("prompt", tokens),
            ("pins", list(kind("integer"))),
            ("why", why),
            ("ram_tokens", kind("integer")),
            ("disk_tokens", kind("integer")),
        ],
    );
    add(&mut node, life());
    node
}

/// What decides how long a node is kept.
fn life() -> Value {
    object([
        ("age_s", nullable("number")),
        ("reuses", kind("integer")),
        ("pinned", kind("boolean")),
        ("priority", kind("integer")),
        ("expires_s", nullable("number")),
    ])
}

/// Adds the fields of one object to another.
fn add(object: &mut Value, more: Value) {
    if let (Value::Object(fields), Value::Object(more)) =
        (&mut object["properties"], more["properties"].clone())
    {
        fields.extend(more);
    }
}

/// Of `GET /v1/retention`.
pub(super) fn retention() -> Value {
    let measured = object([
        ("policy", kind("string")),
        ("kv", kind("string")),
        ("question_seen", kind("boolean")),
        ("share_kept", kind("number")),
        ("mean_percent", kind("number")),
        ("worst_percent", kind("number")),
        ("worst_task", kind("string")),
        ("cases", kind("integer")),
    ]);
    named("retention", [("measured", list(measured))])
}

/// Of `GET /v1/stats`.
pub(super) fn stats() -> Value {
    let by_tier = object([("ram", kind("integer")), ("disk", kind("integer"))]);
    let tokens = object([
        ("prompt", kind("integer")),
        ("cached", kind("integer")),
        ("by_tier", by_tier),
        ("generated", kind("integer")),
    ]);
    let counts = ["answered", "failed", "refused"].map(|name| (name, kind("integer")));
    named(
        "stats",
        [
            ("time", kind("number")),
            ("started", kind("number")),
            ("scope", json!({"enum": ["server", "tenant"]})),
            ("tokens", tokens),
            ("requests", object(counts)),
            ("queue", nullable("object")),
            ("kv", nullable("object")),
        ],
    )
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
    let mut found = object([
        ("message", kind("integer")),
        ("before", kind("string")),
        ("text", kind("string")),
        ("after", kind("string")),
    ]);
    found["type"] = json!(["object", "null"]);
    let mut listed = conversation();
    listed["properties"]["found"] = found;
    let fields = [("data", list(listed)), ("has_more", kind("boolean")), ("next", nullable("string"))];
    named("list", fields)
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
