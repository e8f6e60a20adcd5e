//! Shapes of llama-server's answers, for the document of all routes.

use serde_json::{Value, json};

use crate::api::shapes::{kind, kvik, list, object, timings, usage};

/// Of `/completion`: one answer, or an array of several.
pub(super) fn completion() -> Value {
    let one = object([
        ("index", kind("integer")),
        ("content", kind("string")),
        ("tokens", list(kind("integer"))),
        ("id_slot", kind("integer")),
        ("stop", kind("boolean")),
        ("model", kind("string")),
        ("tokens_predicted", kind("integer")),
        ("tokens_evaluated", kind("integer")),
        ("tokens_cached", kind("integer")),
        ("generation_settings", kind("object")),
        ("prompt", kind("string")),
        ("has_new_line", kind("boolean")),
        ("truncated", kind("boolean")),
        ("stop_type", json!({"enum": ["word", "limit", "eos", "none"]})),
        ("stopping_word", kind("string")),
        ("usage", usage()),
        ("timings", timings()),
        ("kvik", kvik()),
        ("completion_probabilities", list(kind("object"))),
    ]);
    json!({"anyOf": [one, list(one.clone())]})
}

/// Of `/tokenize`.
pub(super) fn tokens() -> Value {
    let piece = object([("id", kind("integer")), ("piece", json!({"type": ["string", "array"]}))]);
    object([("tokens", list(json!({"anyOf": [kind("integer"), piece]})))])
}

/// Of `/detokenize`.
pub(super) fn content() -> Value {
    object([("content", kind("string"))])
}

/// Of `/apply-template`.
pub(super) fn prompt() -> Value {
    object([("prompt", kind("string"))])
}

/// Of `/props`.
pub(super) fn props() -> Value {
    object([
        ("default_generation_settings", kind("object")),
        ("total_slots", kind("integer")),
        ("model_path", kind("string")),
        ("model_alias", kind("string")),
        ("modalities", kind("object")),
        ("chat_template", json!({"type": ["string", "null"]})),
        ("bos_token", json!({"type": ["string", "null"]})),
        ("eos_token", json!({"type": ["string", "null"]})),
        ("build_info", kind("string")),
    ])
}

/// Of `/slots`.
pub(super) fn slots() -> Value {
    list(object([
        ("id", kind("integer")),
        ("n_ctx", kind("integer")),
        ("speculative", kind("boolean")),
        ("is_processing", kind("boolean")),
    ]))
}

/// Of `POST /slots/{id}`.
pub(super) fn slot_changed() -> Value {
    object([
        ("id_slot", kind("integer")),
        ("filename", kind("string")),
        ("n_saved", kind("integer")),
        ("n_restored", kind("integer")),
        ("n_erased", kind("integer")),
    ])
}

/// Of what is always refused.
pub(super) fn nothing() -> Value {
    kind("object")
}

/// Of `GET /lora-adapters`.
pub(super) fn adapters() -> Value {
    list(object([
        ("id", kind("integer")),
        ("name", kind("string")),
        ("path", kind("string")),
        ("scale", kind("number")),
        ("task_name", kind("string")),
        ("prompt_prefix", kind("string")),
    ]))
}

/// Of a change that was made.
pub(super) fn success() -> Value {
    object([("success", kind("boolean"))])
}
