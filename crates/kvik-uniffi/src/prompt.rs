//! What a model is asked: a text to continue, or messages to answer.

/// Who says a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
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
#[derive(Debug, Clone, PartialEq, Eq, uniffi::Record)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What is said.
    pub content: String,
    /// Calls of the model.
    #[uniffi(default = [])]
    pub tool_calls: Vec<ToolCall>,
    /// The call that the result of a tool answers.
    #[uniffi(default = None)]
    pub tool_call_id: Option<String>,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq, uniffi::Record)]
pub struct ToolCall {
    /// What its result names it by.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Its arguments: JSON, as the model wrote it.
    pub arguments: String,
}

/// What a model is asked.
#[derive(Debug, Clone, PartialEq, Eq, uniffi::Enum)]
pub enum Prompt {
    /// A text to continue as it is. Names of control tokens in it stand for these tokens: texts of users belong into
    /// messages.
    Text {
        /// The text.
        text: String,
    },
    /// Messages, in the form of the model's chat template. Nothing in them is taken for a control token.
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
