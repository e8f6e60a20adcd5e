//! Messages of a chat.

use kvik_text::template::has_images;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

/// Role of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// Instructions of the application to the model.
    System,
    /// Input of the user.
    User,
    /// Output of the model.
    Assistant,
    /// Result of a tool call.
    Tool,
}

/// A message of a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// Role of the message.
    pub role: Role,
    /// Text of the message.
    pub content: String,
    /// Tool calls of the model.
    pub tool_calls: Vec<ToolCall>,
    /// Id of the call that a tool's result answers.
    pub tool_call_id: Option<String>,
}

/// A tool call. On its own it is serialised field by field; in a message, in OpenAI's form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Id that the call's result refers to.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// Arguments: JSON, as the model wrote it.
    pub arguments: String,
}

impl Message {
    /// Creates a message of a role.
    pub fn new(role: Role, content: impl Into<String>) -> Message {
        Message { role, content: content.into(), tool_calls: Vec::new(), tool_call_id: None }
    }

    /// Creates a system message.
    pub fn system(content: impl Into<String>) -> Message {
        Message::new(Role::System, content)
    }

    /// Creates a user's message.
    pub fn user(content: impl Into<String>) -> Message {
        Message::new(Role::User, content)
    }

    /// Creates a message of the model.
    pub fn assistant(content: impl Into<String>) -> Message {
        Message::new(Role::Assistant, content)
    }

    /// Creates a message of the model that calls tools.
    pub fn calls(tool_calls: Vec<ToolCall>) -> Message {
        Message { tool_calls, ..Message::new(Role::Assistant, "") }
    }

    /// Creates the result of a tool call.
    pub fn tool(call_id: impl Into<String>, content: impl Into<String>) -> Message {
        Message { tool_call_id: Some(call_id.into()), ..Message::new(Role::Tool, content) }
    }

    /// The message as JSON, for templates and for storage in conversations.
    pub(crate) fn json(&self) -> Value {
        let only_calls = self.content.is_empty() && !self.tool_calls.is_empty();
        let content = if only_calls { Value::Null } else { json!(self.content) };
        let mut message = json!({"role": self.role.name(), "content": content});
        if !self.tool_calls.is_empty() {
            message["tool_calls"] = self.tool_calls.iter().map(ToolCall::json).collect();
        }
        if let Some(id) = &self.tool_call_id {
            message["tool_call_id"] = json!(id);
        }
        message
    }

    /// Parses a stored message. Words stand in the place of pictures and files, which other programs may have written.
    pub(crate) fn of(message: &Value) -> Message {
        let role = message["role"].as_str().and_then(Role::of).unwrap_or(Role::User);
        let calls = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        Message {
            role,
            content: kvik_memory::context::chain::text_of(message),
            tool_calls: calls.iter().map(ToolCall::of).collect(),
            tool_call_id: message["tool_call_id"].as_str().map(str::to_owned),
        }
    }
}

/// Serialises in OpenAI's form.
impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json().serialize(serializer)
    }
}

/// Parses OpenAI's form. What a message does not hold is an error: an unknown role, an image, reasoning.
impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Message, D::Error> {
        let message = Value::deserialize(deserializer)?;
        check(&message).map_err(D::Error::custom)?;
        Ok(Message::of(&message))
    }
}

/// Refuses what [`Message::of`] would leave out.
fn check(message: &Value) -> Result<(), &'static str> {
    let is_text =
        |part: &Value| part["text"].is_string() && (part["type"].is_null() || part["type"] == "text");
    let says = |name: &str| message[name].as_str().is_some_and(|text| !text.is_empty());
    match &message["content"] {
        _ if message["role"].as_str().and_then(Role::of).is_none() => {
            Err("`role` is none of system, user, assistant and tool")
        }
        _ if says("reasoning_content") || says("reasoning") => Err("a message holds no reasoning"),
        _ if has_images(message) => Err("a message holds no `images`"),
        Value::Null | Value::String(_) => Ok(()),
        Value::Array(parts) if parts.iter().all(is_text) => Ok(()),
        _ => Err("`content` is not text"),
    }
}

impl Role {
    /// Name of the role in templates and APIs.
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }

    /// The role of this name; `developer`, which newer clients use, is the system.
    fn of(name: &str) -> Option<Role> {
        let name = if name == "developer" { "system" } else { name };
        [Role::System, Role::User, Role::Assistant, Role::Tool].into_iter().find(|role| role.name() == name)
    }
}

impl ToolCall {
    fn json(&self) -> Value {
        let function = json!({"name": self.name, "arguments": self.arguments});
        json!({"id": self.id, "type": "function", "function": function})
    }

    fn of(call: &Value) -> ToolCall {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        ToolCall {
            id: text(&call["id"]),
            name: text(&call["function"]["name"]),
            arguments: text(&call["function"]["arguments"]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_kept_as_they_were_said() {
        let call = ToolCall { id: "call_1".into(), name: "weather".into(), arguments: "{\"at\": 7}".into() };
        for message in [
            Message::system("Be brief."),
            Message::user("Hello."),
            Message::assistant("Hi!"),
            Message::calls(vec![call.clone()]),
            Message { content: "Let me see.".into(), ..Message::calls(vec![call]) },
            Message::tool("call_1", "sunny"),
        ] {
            assert_eq!(Message::of(&message.json()), message);
        }
        let parts = json!({"role": "user", "content": [{"type": "text", "text": "Hello."}]});
        assert_eq!(Message::of(&parts), Message::user("Hello."), "as other programs write it");
        let image = json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]});
        assert_eq!(Message::of(&image).content, "[an image, which this model cannot see]");
    }

    #[test]
    fn a_message_that_would_lose_something_is_not_read() {
        let image = json!({"type": "image_url", "image_url": {"url": "x"}});
        let named = json!({"type": "image_url", "text": "photo", "image_url": {"url": "x"}});
        let text = json!({"type": "text", "text": "What is on it?"});
        let call = json!({"id": "1", "function": {"name": "f", "arguments": "{}"}});
        for (message, refused) in [
            (json!({"role": "developer", "content": "Be brief."}), None),
            (json!({"role": "user", "content": [text]}), None),
            (json!({"role": "user", "content": [{"text": "a"}], "images": []}), None),
            (json!({"role": "assistant", "tool_calls": [call], "reasoning_content": null}), None),
            (json!({"role": "robot", "content": "a"}), Some("role")),
            (json!({"content": "a"}), Some("role")),
            (json!({"role": "user", "content": [image, text]}), Some("content")),
            (json!({"role": "user", "content": [named]}), Some("content")),
            (json!({"role": "user", "content": [{"type": 7, "text": "a"}]}), Some("content")),
            (json!({"role": "user", "content": "a", "images": ["eA=="]}), Some("images")),
            (json!({"role": "user", "content": "a", "images": "eA=="}), Some("images")),
            (json!({"role": "user", "content": 7}), Some("content")),
            (json!({"role": "assistant", "content": "a", "reasoning_content": "b"}), Some("reasoning")),
            (json!({"role": "assistant", "content": "a", "reasoning": "b"}), Some("reasoning")),
        ] {
            let read = serde_json::from_value::<Message>(message.clone());
            match refused {
                None => assert!(read.is_ok(), "{message}"),
                Some(field) => assert!(read.unwrap_err().to_string().contains(field), "{message}"),
            }
        }
        let read: Message =
            serde_json::from_value(json!({"role": "developer", "content": "Be brief."})).unwrap();
        assert_eq!(read, Message::system("Be brief."));
    }
}
