//! One case as it is written: messages, where the question begins, and what the answer must say.

use serde_json::{Value, json};

use super::score::Expected;

/// A conversation that ends with a question, in words, for any model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WrittenCase {
    /// Messages in OpenAI's shape, at least one; the last asks.
    pub(crate) messages: Vec<Value>,
    /// Where the question begins.
    pub(crate) question: Question,
    /// Reasoning of models that have it: off, or as their template has it.
    pub(crate) thinking: Option<bool>,
    /// How an answer may begin, for models that only continue a text.
    pub(crate) lead: String,
    /// What the answer must say.
    pub(crate) expected: Expected,
    /// Tokens of an answer at most.
    pub(crate) limit: usize,
    /// The cases of a task that are also counted together, as `100-300`.
    pub(crate) group: String,
}

/// What of a prompt is not seen while its context is compressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Question {
    /// The last message.
    LastMessage,
    /// From the last place of this text on.
    From(String),
    /// So many tokens at the end.
    LastTokens(usize),
}

/// A message in OpenAI's shape.
pub(crate) fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

/// The text of a message.
pub(crate) fn content(message: &Value) -> &str {
    message["content"].as_str().unwrap_or_default()
}

impl WrittenCase {
    /// A conversation of one message, whose question begins at the last place of `question`.
    pub(crate) fn single(text: String, question: &str, expected: Expected, limit: usize) -> WrittenCase {
        WrittenCase {
            messages: vec![message("user", &text)],
            question: Question::From(question.to_owned()),
            thinking: Some(false),
            lead: String::new(),
            expected,
            limit,
            group: String::new(),
        }
    }

    /// With a beginning of the answer for models that only continue a text.
    pub(crate) fn lead(self, lead: String) -> WrittenCase {
        WrittenCase { lead, ..self }
    }

    /// As one of a group.
    pub(crate) fn group(self, group: String) -> WrittenCase {
        WrittenCase { group, ..self }
    }
}
