//! Reads a conversation from a body of any dialect, for consumers that do not answer it: `/v1/cache/explain`
//! and `kvik lint` accept the bodies that agents send.

use kvik_session::Chat;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    anthropic,
    request::{compaction::Foreign, number::Whole},
    responses,
};
use crate::{
    app::state::App,
    http::{error::ApiError, json::Body},
};

type Result<T> = std::result::Result<T, ApiError>;

/// A dialect whose bodies differ from those of Chat Completions.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Dialect {
    Responses,
    Messages,
}

/// Block types that exist in Anthropic's messages and not in OpenAI's.
const BLOCKS: [&str; 6] =
    ["tool_use", "tool_result", "thinking", "redacted_thinking", "document", "server_tool_use"];

/// The length of an answer in Anthropic's messages.
#[derive(Debug, Deserialize)]
struct LengthField {
    max_tokens: Option<Whole<0, { i64::MAX }>>,
}

/// The conversation of a body of another dialect than Chat Completions, and the maximum length of its answer where the
/// dialect may want none; nothing where it is of that, or a plain prompt.
pub(super) fn chat(app: &App, tenant: &str, body: &Body) -> Result<Option<(Chat, Option<i64>)>> {
    let told = match dialect(body)? {
        None => return Ok(None),
        Some(Dialect::Responses) => {
            body.read::<responses::KeepFields>()?.check_unkept()?;
            (body.read::<responses::TellFields>()?.said(app, tenant, body)?.chat, None)
        }
        Some(Dialect::Messages) => {
            let LengthField { max_tokens } = body.read()?;
            let tell = body.read::<anthropic::TellFields>()?;
            let chat = body.read::<anthropic::ManageFields>()?.told(tell, (app, tenant), body)?;
            (chat, max_tokens.map(Whole::get))
        }
    };
    Ok(Some(told))
}

/// Converts a body of any dialect to a Chat Completions body with the same prompt. Needs no server, and
/// therefore cannot resolve references to earlier answers.
pub fn as_chat(body: Value) -> Result<Value> {
    let fields = Body::of(&body)?;
    let foreign = |_: &str| Err(Foreign);
    let chat = match dialect(&fields)? {
        None => return Ok(body),
        Some(Dialect::Responses) => {
            fields.read::<responses::TellFields>()?.said_after(Vec::new(), &foreign, &fields)?.chat
        }
        Some(Dialect::Messages) => fields.read::<anthropic::TellFields>()?.told(&[], &foreign, &fields)?.chat,
    };
    Ok(chat_body(chat))
}

/// A body of Chat Completions that tells a chat.
fn chat_body(chat: Chat) -> Value {
    let mut body = json!({"messages": chat.messages});
    let fields = [
        ("tools", chat.tools.offered),
        ("enable_thinking", chat.enable_thinking.map(Value::from)),
        ("chat_template_kwargs", (!chat.kwargs.is_empty()).then_some(Value::Object(chat.kwargs))),
    ];
    for (name, value) in fields {
        if let Some(value) = value {
            body[name] = value;
        }
    }
    body
}

/// Detects the dialect by the fields that only it has.
fn dialect(body: &Body) -> Result<Option<Dialect>> {
    if body.has("input") || (body.has("previous_response_id") && !body.has("messages")) {
        return Ok(Some(Dialect::Responses));
    }
    if !body.has("messages") {
        return Ok(None);
    }
    let is_messages =
        body.has("system") || body.has("thread") || has_their_values(&body.copy(&["messages", "tools"])?);
    Ok(is_messages.then_some(Dialect::Messages))
}

/// True if tools or messages have Anthropic's format.
fn has_their_values(fields: &Value) -> bool {
    let items = |value: &'_ Value| value.as_array().map_or(&[][..], Vec::as_slice).to_vec();
    let is_their_tool = |tool: &Value| tool["input_schema"].is_object();
    let is_their_block = |block: &Value| block["type"].as_str().is_some_and(|kind| BLOCKS.contains(&kind));
    items(&fields["tools"]).iter().any(is_their_tool)
        || items(&fields["messages"])
            .iter()
            .any(|message| items(&message["content"]).iter().any(is_their_block))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_dialect_tells_the_same_conversation() {
        let schema = json!({"type": "object"});
        let function = json!({"name": "look", "description": "Looks.", "parameters": schema});
        let call =
            json!({"id": "c", "type": "function", "function": {"name": "look", "arguments": "{\"at\": 1}"}});
        let chat = json!({
            "messages": [
                {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Look."},
                {"role": "assistant", "content": null, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": "seen"},
            ],
            "tools": [{"type": "function", "function": function}],
        });
        let messages = json!({
            "model": "x", "max_tokens": 9, "metadata": {"user_id": "u"}, "system": [{"type": "text", "text": "Be brief."}],
            "messages": [
                {"role": "user", "content": "Look."},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {"at": 1}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "seen"}]},
            ],
            "tools": [{"name": "look", "description": "Looks.", "input_schema": schema}],
        });
        let responses = json!({
            "model": "x", "instructions": "Be brief.", "client_metadata": {"a": "b"},
            "input": [
                {"role": "user", "content": "Look."},
                {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{\"at\": 1}"},
                {"type": "function_call_output", "call_id": "c", "output": "seen"},
            ],
            "tools": [{"type": "function", "name": "look", "description": "Looks.", "parameters": schema}],
        });
        let told = |body: Value| {
            let chat = as_chat(body).unwrap();
            json!({"messages": chat["messages"], "tools": chat["tools"]})
        };
        assert_eq!(told(messages), chat);
        assert_eq!(told(responses), chat);
        assert_eq!(as_chat(chat.clone()).unwrap(), chat, "its own bodies stay as they are");
        assert_eq!(as_chat(json!({"prompt": "x"})).unwrap(), json!({"prompt": "x"}));
        assert!(as_chat(json!({"input": [7]})).is_err());
    }
}
