//! A case in text form: messages, the beginning of the question, and the expected answer.

use serde_json::{Value, json};

use super::score::Expected;

/// A conversation in text form that ends with a question, for any model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WrittenCase {
    /// Messages in OpenAI's shape, at least one; the last contains the question.
    pub(crate) messages: Vec<Value>,
    /// The beginning of the question.
    pub(crate) question: Question,
    /// Reasoning of models that support it: on or off, or the template's default with `None`.
    pub(crate) thinking: Option<bool>,
    /// A possible beginning of the answer, for models that only continue a text.
    pub(crate) lead: String,
    /// The expected answer.
    pub(crate) expected: Expected,
    /// Maximum tokens of an answer.
    pub(crate) limit: usize,
    /// Group of cases that are also counted together, such as `100-300`.
    pub(crate) group: String,
}

/// The part of a prompt that is unseen while its context is compressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Question {
    /// The last message.
    LastMessage,
    /// The text from the last occurrence of this string on.
    From(String),
    /// This number of tokens at the end.
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
    /// A conversation of one message, whose question begins at the last occurrence of `question`.
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

    /// Sets a beginning of the answer for models that only continue a text.
    pub(crate) fn lead(self, lead: String) -> WrittenCase {
        WrittenCase { lead, ..self }
    }

    /// Sets the group of the case.
    pub(crate) fn group(self, group: String) -> WrittenCase {
        WrittenCase { group, ..self }
    }
}
