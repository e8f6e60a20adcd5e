//! The response object: what the request said, and the items of the answer as far as they are known.

use kvik_engine::api::Report;
use serde_json::{Map, Value, json};

use super::input::sealed;
use crate::{
    app::{report::trailer::Trailer, state::App},
    clock::unix_seconds,
    random::random,
};

/// A response as far as it is known.
#[derive(Debug)]
pub(super) struct Output {
    /// Fields that do not change.
    base: Map<String, Value>,
    /// Complete items, and the last one as far as it is known.
    pub(super) items: Vec<Value>,
}

/// How a response stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    InProgress,
    Completed,
    /// It reached the most tokens it may have.
    Incomplete,
}

impl Status {
    pub(super) fn name(self) -> &'static str {
        match self {
            Status::InProgress => "in_progress",
            Status::Completed => "completed",
            Status::Incomplete => "incomplete",
        }
    }
}

impl Output {
    /// The response `id` to a request that said `echo`.
    pub(super) fn new(app: &App, id: &str, echo: &Value, stored: bool) -> Output {
        let mut base = Map::new();
        let mut set = |name: &str, value: Value| drop(base.insert(name.to_owned(), value));
        set("id", json!(id));
        set("object", json!("response"));
        set("created_at", json!(unix_seconds()));
        set("model", json!(app.serving.model.name));
        set("background", json!(false));
        set("error", Value::Null);
        for (name, usual) in [
            ("instructions", Value::Null),
            ("max_output_tokens", Value::Null),
            ("max_tool_calls", Value::Null),
            ("metadata", json!({})),
            ("parallel_tool_calls", json!(true)),
            ("previous_response_id", Value::Null),
            ("prompt_cache_key", Value::Null),
            ("prompt_cache_retention", Value::Null),
            ("reasoning", json!({"effort": null, "summary": null})),
            ("safety_identifier", Value::Null),
            ("service_tier", json!("default")),
            ("temperature", json!(1.0)),
            ("text", json!({"format": {"type": "text"}})),
            ("tool_choice", json!("auto")),
            ("tools", json!([])),
            ("top_logprobs", json!(0)),
            ("top_p", json!(1.0)),
            ("truncation", json!("disabled")),
            ("user", Value::Null),
        ] {
            let said = echo.get(name).filter(|value| !value.is_null()).cloned();
            set(name, said.unwrap_or(usual));
        }
        set("store", json!(stored));
        Output { base, items: Vec::new() }
    }

    /// The object as it stands, without what only the end says.
    pub(super) fn json(&self, status: Status) -> Value {
        let mut response = self.base.clone();
        response.insert("status".to_owned(), json!(status.name()));
        let details = (status == Status::Incomplete).then(|| json!({"reason": "max_output_tokens"}));
        response.insert("incomplete_details".to_owned(), details.unwrap_or(Value::Null));
        response.insert("output".to_owned(), Value::Array(self.items.clone()));
        response.insert("usage".to_owned(), Value::Null);
        Value::Object(response)
    }

    /// The object at its end: what it cost, and what the cache did.
    pub(super) fn ended(&self, status: Status, reasoning_tokens: usize, trailer: &Trailer) -> Value {
        let mut response = self.json(status);
        response["usage"] = usage(&trailer.total(), reasoning_tokens);
        if let Value::Object(response) = &mut response {
            trailer.add_to(response);
        }
        response
    }
}

/// What it cost.
pub(super) fn usage(report: &Report, reasoning_tokens: usize) -> Value {
    json!({
        "input_tokens": report.prompt_tokens,
        "input_tokens_details": {"cached_tokens": report.cached_tokens},
        "output_tokens": report.generated_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": report.prompt_tokens + report.generated_tokens,
    })
}

/// An id of an item.
fn id(kind: &str) -> String {
    format!("{kind}_{:016x}", random())
}

/// A message that says nothing yet.
pub(super) fn message() -> Value {
    json!({"id": id("msg"), "type": "message", "status": "in_progress", "role": "assistant", "content": []})
}

/// A part of a message that says this.
pub(super) fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

/// Thoughts that say nothing yet.
pub(super) fn reasoning() -> Value {
    json!({"id": id("rs"), "type": "reasoning", "status": "in_progress", "summary": [], "content": []})
}

/// A part of thoughts.
pub(super) fn reasoning_part(text: &str) -> Value {
    json!({"type": "reasoning_text", "text": text})
}

/// Thoughts with what stands for them.
pub(super) fn seal(item: &mut Value) {
    let text = item.pointer("/content/0/text").and_then(Value::as_str).map(sealed);
    item["encrypted_content"] = json!(text);
}

/// A call without its arguments.
pub(super) fn call(call_id: &str, name: &str) -> Value {
    json!({
        "id": id("fc"),
        "type": "function_call",
        "status": "in_progress",
        "call_id": call_id,
        "name": name,
        "arguments": "",
    })
}
