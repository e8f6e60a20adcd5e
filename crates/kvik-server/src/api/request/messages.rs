//! Checks the messages of a chat request.
//!
//! Converting them to the structure that a template expects is the template's task.

use kvik_text::template::{has_images, unseen};
use serde_json::Value;

use crate::http::{error::ApiError, json::wrong};

type Result<T> = std::result::Result<T, ApiError>;

/// Maximum number of messages in one conversation.
const MESSAGES_MAX: usize = kvik_memory::conversations::MESSAGES_MAX;

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Checks the field `messages`.
pub(crate) fn checked(messages: Value) -> Result<Value> {
    let error = |text: String| Err(ApiError::field("messages", format!("`messages` {text}")));
    match &messages {
        Value::Array(list) if list.is_empty() => error("is empty; send at least one message".to_owned()),
        Value::Array(list) if list.len() > MESSAGES_MAX => {
            error(format!("holds more than {MESSAGES_MAX} messages"))
        }
        Value::Array(list) => {
            list.iter().enumerate().try_for_each(|(i, message)| check(i, message))?;
            Ok(messages)
        }
        other => Err(wrong("messages", "an array", other)),
    }
}

/// Returns a note for each part of the messages that is not text, in whose place words stand, and for images beside a
/// content, which are left out. If the question is about them, it is refused later.
pub(super) fn unseen_parts(messages: &Value) -> impl Iterator<Item = String> {
    let messages = messages.as_array().into_iter().flatten().enumerate();
    messages.flat_map(|(i, message)| {
        let parts = message["content"].as_array().into_iter().flatten().enumerate();
        let images = has_images(message)
            .then(|| format!("`messages[{i}].images` holds images, which are not read here"));
        let parts = parts.filter_map(move |(j, part)| {
            let kind = part["type"].as_str().filter(|kind| unseen(kind).is_some())?;
            Some(format!("`messages[{i}].content[{j}]` is a part of type {kind:?}, which is not read here"))
        });
        parts.chain(images)
    })
}

/// Describes the fields of a message that are checked here; the template interprets the others.
#[cfg(test)]
pub(crate) fn schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let text = serde_json::json!({"type": "object", "properties": {"type": {"const": "text"}, "text": {"type": "string"}}});
    schemars::json_schema!({"type": "array", "minItems": 1, "maxItems": MESSAGES_MAX, "items": {
        "type": "object",
        "properties": {
            "role": {"enum": ROLES},
            "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": text}, {"type": "null"}]},
            "tool_calls": {"type": ["array", "null"], "items": {"type": "object"}},
        },
        "required": ["role"],
    }})
}

/// Checks for errors that templates would render silently: an unknown role, or missing content.
fn check(i: usize, message: &Value) -> Result<()> {
    let path = format!("messages[{i}]");
    let Some(message) = message.as_object() else { return Err(wrong(path, "an object", message)) };
    let at = |name: &str, text: String| {
        let path = format!("messages[{i}].{name}");
        Err(ApiError::field(&path, format!("`{path}` {text}")))
    };
    match message.get("role") {
        None => return at("role", "is missing".to_owned()),
        Some(Value::String(role)) if ROLES.contains(&role.as_str()) => {}
        Some(Value::String(role)) => {
            return at("role", format!("is {role:?}; kvik knows {}", ROLES.join(", ")));
        }
        Some(other) => return Err(wrong(format!("{path}.role"), "a string", other)),
    }
    let has_content = message.get("content").is_some_and(|content| !content.is_null());
    // An answer may have been calls, or reasoning that its limit cut off.
    if !has_content && message["role"] != "assistant" {
        return at("content", "is missing".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_pass_untouched() {
        let check = |message: Value| {
            assert_eq!(checked(json!([message])).unwrap()[0], message);
        };
        check(json!({"role": "developer", "content": "hi", "name": "x"}));
        check(json!({"role": "user", "content": [{"type": "text", "text": "a"}]}));
        check(json!({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f"}}]}));
        // Reasoning that reached the limit, as clients put a stream together.
        check(json!({"role": "assistant", "content": null, "reasoning_content": "Let me"}));
    }

    #[test]
    fn what_is_not_text_is_noted() {
        let image = json!({"type": "image_url", "image_url": {"url": "x"}});
        let messages = json!([
            7,
            {"role": "user", "content": [{"type": "text", "text": "a"}, image, {"type": "refusal", "refusal": "b"}]},
            {"role": "tool", "content": [{"type": "file", "file": {}}]},
            {"role": "assistant", "content": "a", "images": [image]},
            {"role": "user", "content": "a", "images": []},
        ]);
        let notes: Vec<String> = unseen_parts(&messages).collect();
        let expect = [
            "`messages[1].content[1]` is a part of type \"image_url\", which is not read here",
            "`messages[2].content[0]` is a part of type \"file\", which is not read here",
            "`messages[3].images` holds images, which are not read here",
        ];
        assert_eq!(notes, expect);
        assert_eq!(unseen_parts(&json!("hi")).count(), 0);
    }

    #[test]
    fn wrong_messages_name_their_place() {
        let check = |messages: Value, at: &str| {
            let error = checked(messages).unwrap_err().body();
            assert_eq!(error["error"]["param"], at, "{error}");
        };
        check(json!(7), "messages");
        check(json!("hi"), "messages");
        check(json!([]), "messages");
        check(json!(["hi"]), "messages[0]");
        check(json!([{"content": "hi"}]), "messages[0].role");
        check(json!([{"role": "robot", "content": "hi"}]), "messages[0].role");
        check(json!([{"role": 3, "content": "hi"}]), "messages[0].role");
        check(json!([{"role": "user"}]), "messages[0].content");
        check(json!([{"role": "tool", "content": null}]), "messages[0].content");
        check(
            json!([{"role": "user", "content": "a"}, {"role": "user", "content": null}]),
            "messages[1].content",
        );
    }
}
