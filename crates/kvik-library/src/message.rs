//! What is said in a chat.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

/// Who says a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// The program, to the model.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// A tool that the model called.
    Tool,
}

/// A message of a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What is said.
    pub content: String,
    /// Calls of the model.
    pub tool_calls: Vec<ToolCall>,
    /// The call that the result of a tool answers.
    pub tool_call_id: Option<String>,
}

/// A call of a tool. By itself it is written as its fields are; in a message, in OpenAI's form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// What its result names it by.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Its arguments: JSON, as the model wrote it.
    pub arguments: String,
}

impl Message {
    /// Of whoever it is.
    pub fn new(role: Role, content: impl Into<String>) -> Message {
        Message { role, content: content.into(), tool_calls: Vec::new(), tool_call_id: None }
    }

    /// What the program says.
    pub fn system(content: impl Into<String>) -> Message {
        Message::new(Role::System, content)
    }

    /// What the user says.
    pub fn user(content: impl Into<String>) -> Message {
        Message::new(Role::User, content)
    }

    /// What the model has said.
    pub fn assistant(content: impl Into<String>) -> Message {
        Message::new(Role::Assistant, content)
    }

    /// Calls that the model has made.
    pub fn calls(tool_calls: Vec<ToolCall>) -> Message {
        Message { tool_calls, ..Message::new(Role::Assistant, "") }
    }

    /// What a tool has answered to a call.
    pub fn tool(call_id: impl Into<String>, content: impl Into<String>) -> Message {
        Message { tool_call_id: Some(call_id.into()), ..Message::new(Role::Tool, content) }
    }

    /// As templates are given it, and as conversations keep it.
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

    /// The message that a conversation keeps so. What other programs wrote there besides text is left out.
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

/// In OpenAI's form.
impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json().serialize(serializer)
    }
}

/// Of OpenAI's form.
impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Message, D::Error> {
        Ok(Message::of(&Value::deserialize(deserializer)?))
    }
}

impl Role {
    /// As templates and other programs name it.
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }

    fn of(name: &str) -> Option<Role> {
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
    }
}
