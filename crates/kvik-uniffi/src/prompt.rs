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
}

/// A message of a chat.
#[derive(Debug, Clone, PartialEq, Eq, uniffi::Record)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What is said.
    pub content: String,
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
        }
    }
}

impl From<Message> for kvik_library::Message {
    fn from(Message { role, content }: Message) -> kvik_library::Message {
        kvik_library::Message { role: role.into(), content }
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
