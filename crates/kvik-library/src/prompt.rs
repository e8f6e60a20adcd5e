//! Prompts: a text to continue, or messages to answer.

use kvik_engine::api::Constraint;
use kvik_session::{Chat, EncodedChat, Texts};
use kvik_text::answer::Reading;
use kvik_text::tools::Tools;
use serde_json::Value;

use crate::error::Error;
use crate::message::Message;

/// A prompt of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// A text to continue as it is. Names of control tokens in it are parsed as these tokens, so users' texts belong in
    /// messages.
    Text(String),
    /// Messages, rendered by the model's chat template. Nothing in them is parsed as a control token.
    Messages(Vec<Message>),
}

/// The options of an answer that determine its prompt and its form.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) tools: Tools,
    /// `None` leaves the choice to the template.
    pub(crate) reasoning: Option<bool>,
    pub(crate) constraint: Option<Constraint>,
}

impl Asked {
    /// These messages, an array, with its tools and its switch for reasoning.
    pub(crate) fn chat(&self, messages: Value) -> Chat {
        Chat::new(messages, self.tools.clone(), self.reasoning)
    }

    /// Whether the answer begins with reasoning; `None` leaves it to the template.
    pub(crate) fn reasons(&self, texts: &Texts) -> Option<bool> {
        texts.thinks(&self.chat(Value::Null))
    }

    /// The request for an answer of this form to messages.
    pub(crate) fn encode(&self, texts: &Texts, messages: Vec<Value>) -> Result<EncodedChat, Error> {
        let chat = self.chat(Value::Array(messages));
        let prompt = texts.render(&chat)?;
        Ok(texts.encode(&chat, prompt, self.constraint.clone()))
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
    /// Its messages, if it is a chat.
    pub(crate) fn messages(&self) -> Option<Vec<Value>> {
        match self {
            Prompt::Text(_) => None,
            Prompt::Messages(messages) => Some(json_of(messages)),
        }
    }

    /// Its tokens, and the form of the answer.
    pub(crate) fn encode(&self, texts: &Texts, asked: &Asked) -> Result<EncodedChat, Error> {
        match self {
            Prompt::Text(text) => Ok(plain(texts, text, asked.constraint.clone())),
            Prompt::Messages(messages) => asked.encode(texts, json_of(messages)),
        }
    }
}

/// A text as it is.
fn plain(texts: &Texts, text: &str, constraint: Option<Constraint>) -> EncodedChat {
    let tokens = texts.tokenizer.encode(text, true, true);
    EncodedChat { tokens, reading: Reading::Plain, constraint, show: Vec::new() }
}

pub(crate) fn json_of(messages: &[Message]) -> Vec<Value> {
    messages.iter().map(Message::json).collect()
}
