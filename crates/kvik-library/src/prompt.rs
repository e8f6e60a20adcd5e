//! What a model is asked: a text to continue, or messages to answer.

use std::time::SystemTime;

use kvik_cache::Token;
use kvik_engine::text::answer::AnswerStart;
use kvik_engine::text::template::{ChatTemplate, RenderInput};
use kvik_engine::text::tokenizer::Tokenizer;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::error::Error;

/// Who says a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Role {
    /// The program, to the model.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
}

/// A message of a chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What is said.
    pub content: String,
}

/// What a model is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// A text to continue as it is. Names of control tokens in it stand for these tokens: texts of users belong into
    /// messages.
    Text(String),
    /// Messages, in the form of the model's chat template. Nothing in them is taken for a control token.
    Messages(Vec<Message>),
}

/// A prompt as the engine takes it.
pub(crate) struct Encoded {
    pub(crate) tokens: Vec<Token>,
    /// Where the answer to a chat begins.
    pub(crate) start: Option<AnswerStart>,
}

/// What a prompt is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To be answered, with reasoning switched on or off.
    Answer {
        /// `None` leaves it to the template.
        reasoning: Option<bool>,
    },
    /// To be kept: other prompts begin with it.
    Kept,
}

impl Message {
    /// What the program says.
    pub fn system(content: impl Into<String>) -> Message {
        Message { role: Role::System, content: content.into() }
    }

    /// What the user says.
    pub fn user(content: impl Into<String>) -> Message {
        Message { role: Role::User, content: content.into() }
    }

    /// What the model has said.
    pub fn assistant(content: impl Into<String>) -> Message {
        Message { role: Role::Assistant, content: content.into() }
    }
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Prompt {
        Prompt::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Prompt {
        Prompt::Text(text)
    }
}

impl From<Vec<Message>> for Prompt {
    fn from(messages: Vec<Message>) -> Prompt {
        Prompt::Messages(messages)
    }
}

impl From<&[Message]> for Prompt {
    fn from(messages: &[Message]) -> Prompt {
        Prompt::Messages(messages.to_vec())
    }
}

impl Prompt {
    /// Its tokens.
    pub(crate) fn encode(
        &self,
        tokenizer: &Tokenizer,
        template: Option<&ChatTemplate>,
        purpose: Purpose,
    ) -> Result<Encoded, Error> {
        match self {
            Prompt::Text(text) => Ok(Encoded { tokens: tokenizer.encode(text, true, true), start: None }),
            Prompt::Messages(messages) => {
                let template = template.ok_or(Error::NoTemplate)?;
                let prompt = template.render(&render_input(messages, purpose))?;
                let start = template.answer_after(&prompt.text);
                let tokens = tokenizer.encode_chat(&prompt.text, &prompt.inputs);
                Ok(Encoded { tokens, start: Some(start) })
            }
        }
    }
}

fn render_input(messages: &[Message], purpose: Purpose) -> RenderInput {
    let value = |Message { role, content }: &Message| json!({"role": role, "content": content});
    let (add_generation_prompt, enable_thinking) = match purpose {
        Purpose::Answer { reasoning } => (true, reasoning),
        Purpose::Kept => (false, None),
    };
    RenderInput {
        messages: Value::Array(messages.iter().map(value).collect()),
        tools: None,
        add_generation_prompt,
        enable_thinking,
        kwargs: Map::new(),
        now: SystemTime::now(),
    }
}
