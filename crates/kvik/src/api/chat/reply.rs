//! What is said in one choice of an answer, as far as it is known.

use kvik_engine::text::answer::AnswerDelta;
use serde_json::{Value, json};

use crate::api::reading::{Reader, Reading};

/// The text of a choice, read as it comes, and what it has come to.
#[derive(Debug)]
pub(crate) struct Reply {
    reader: Reader,
    pub(crate) content: String,
    pub(crate) reasoning: String,
    /// Calls of tools, as messages have them: `{"id", "type": "function", "function": {"name", "arguments"}}`.
    pub(crate) calls: Vec<Value>,
    /// Tokens of thoughts, to the nearest piece of text.
    pub(crate) reasoning_tokens: usize,
    thinking: bool,
}

impl Reply {
    pub(crate) fn new(reading: &Reading) -> Reply {
        Reply {
            thinking: matches!(reading, Reading::Tagged { starts_in_thinking: true, .. }),
            reasoning_tokens: 0,
            reader: reading.reader(),
            content: String::new(),
            reasoning: String::new(),
            calls: Vec::new(),
        }
    }

    /// What a whole text says.
    pub(super) fn whole(reading: &Reading, text: &str) -> Reply {
        let mut reply = Reply::new(reading);
        reply.push(text);
        reply.finish();
        reply
    }

    /// Reads more text; returns what is new.
    pub(crate) fn push(&mut self, text: &str) -> Vec<AnswerDelta> {
        let deltas = self.reader.push(text);
        self.kept(deltas)
    }

    /// The same of a text of so many tokens.
    pub(crate) fn push_tokens(&mut self, text: &str, tokens: usize) -> Vec<AnswerDelta> {
        if self.thinking {
            self.reasoning_tokens += tokens;
        }
        self.push(text)
    }

    /// Whether what was read last is a thought.
    pub(crate) fn is_thinking(&self) -> bool {
        self.thinking
    }

    /// What was held back, now that no more text comes.
    pub(crate) fn finish(&mut self) -> Vec<AnswerDelta> {
        let deltas = self.reader.finish();
        self.kept(deltas)
    }

    fn kept(&mut self, deltas: Vec<AnswerDelta>) -> Vec<AnswerDelta> {
        deltas.iter().for_each(|delta| self.keep(delta));
        deltas
    }

    fn keep(&mut self, delta: &AnswerDelta) {
        self.thinking = matches!(delta, AnswerDelta::Reasoning(_));
        match delta {
            AnswerDelta::Content(text) => self.content.push_str(text),
            AnswerDelta::Reasoning(text) => self.reasoning.push_str(text),
            AnswerDelta::ToolCall { id, name, arguments, .. } => {
                let function = json!({"name": name, "arguments": arguments});
                self.calls.push(json!({"id": id, "type": "function", "function": function}));
            }
            AnswerDelta::Arguments { index, text } => {
                let call = self.calls.get_mut(*index);
                if let Some(Value::String(all)) =
                    call.and_then(|call| call.pointer_mut("/function/arguments"))
                {
                    all.push_str(text);
                }
            }
        }
    }

    /// The message that it is, as conversations keep it.
    pub(crate) fn message(&self) -> Value {
        let only_calls = self.content.is_empty() && !self.calls.is_empty();
        let content = if only_calls { Value::Null } else { json!(self.content) };
        let mut message = json!({"role": "assistant", "content": content});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = json!(self.reasoning);
        }
        if !self.calls.is_empty() {
            message["tool_calls"] = json!(self.calls);
        }
        message
    }
}
