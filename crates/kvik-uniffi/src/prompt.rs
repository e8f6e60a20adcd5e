//! Prompts: a text to continue, or messages to answer.

/// Role of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
pub enum Role {
    /// Instructions of the program to the model.
    System,
    /// Input of the user.
    User,
    /// Output of the model.
    Assistant,
    /// Result of a tool call.
    Tool,
}

/// A message of a chat.
#[derive(Debug, Clone, PartialEq, Eq, uniffi::Record)]
pub struct Message {
    /// Role of the message.
    pub role: Role,
    /// Text of the message.
    pub content: String,
    /// Tool calls of the model.
    #[uniffi(default = [])]
    pub tool_calls: Vec<ToolCall>,
    /// Id of the call that a tool's result answers.
    #[uniffi(default = None)]
    pub tool_call_id: Option<String>,
}

/// A tool call.
#[derive(Debug, Clone, PartialEq, Eq, uniffi::Record)]
pub struct ToolCall {
    /// Id that the call's result refers to.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// Arguments: JSON, as the model wrote it.
    pub arguments: String,
}

/// A prompt of a model.
#[derive(Debug, Clone, PartialEq, Eq, uniffi::Enum)]
pub enum Prompt {
    /// A text to continue as it is. Names of control tokens in it are parsed as these tokens, so users' texts belong in
    /// messages.
    Text {
        /// The text.
        text: String,
    },
    /// Messages, rendered by the model's chat template. Nothing in them is parsed as a control token.
    Messages {
        /// The messages.
        messages: Vec<Message>,
    },
}

impl From<Role> for kvik_library::Role {
    fn from(role: Role) -> kvik_library::Role {
        match role {
            Role::System => kvik_library::Role::System,
            Role::User => kvik_library::Role::User,
            Role::Assistant => kvik_library::Role::Assistant,
            Role::Tool => kvik_library::Role::Tool,
        }
    }
}

impl From<Message> for kvik_library::Message {
    fn from(Message { role, content, tool_calls, tool_call_id }: Message) -> kvik_library::Message {
        let mut message = kvik_library::Message::new(role.into(), content);
        message.tool_calls = tool_calls.into_iter().map(Into::into).collect();
        message.tool_call_id = tool_call_id;
        message
    }
}

impl From<kvik_library::Role> for Role {
    fn from(role: kvik_library::Role) -> Role {
        match role {
            kvik_library::Role::System => Role::System,
            kvik_library::Role::Assistant => Role::Assistant,
            kvik_library::Role::Tool => Role::Tool,
            _ => Role::User,
        }
    }
}

impl From<kvik_library::Message> for Message {
    fn from(message: kvik_library::Message) -> Message {
        Message {
            role: message.role.into(),
            content: message.content,
            tool_calls: message.tool_calls.into_iter().map(Into::into).collect(),
            tool_call_id: message.tool_call_id,
        }
    }
}

impl From<ToolCall> for kvik_library::ToolCall {
    fn from(ToolCall { id, name, arguments }: ToolCall) -> kvik_library::ToolCall {
        kvik_library::ToolCall { id, name, arguments }
    }
}

impl From<kvik_library::ToolCall> for ToolCall {
    fn from(call: kvik_library::ToolCall) -> ToolCall {
        ToolCall { id: call.id, name: call.name, arguments: call.arguments }
    }
}

impl From<Prompt> for kvik_library::Prompt {
    fn from(prompt: Prompt) -> kvik_library::Prompt {
        match prompt {
            Prompt::Text { text } => text.into(),
            Prompt::Messages { messages } => {
                kvik_library::Prompt::Messages(messages.into_iter().map(Into::into).collect())
            }
        }
    }
}
