//! The content of one choice of an answer, as generated so far.

use kvik_engine::api::FinishReason;
use kvik_text::answer::AnswerDelta;
use serde::Serialize;
use serde_json::Value;

use crate::{
    api::reading::{Reader, Reading, reader},
    app::report::loops,
    described::JsonSchema,
    http::answer::{value, words},
};

words! {
    Assistant = "assistant";
    Function = "function";
}

/// What the model said, as conversations keep it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct AssistantMessage {
    role: Assistant,
    /// Null of one that is nothing but calls.
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
}

/// A call of a tool.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct ToolCall {
    pub(crate) id: String,
    r#type: Function,
    pub(crate) function: CalledFunction,
}

/// Which tool is called, and with what.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct CalledFunction {
    pub(crate) name: String,
    /// JSON, as the model wrote it.
    pub(crate) arguments: String,
}

/// Incremental parser of one choice's text, with the content collected so far.
#[derive(Debug)]
pub(crate) struct Reply {
    reader: Reader,
    pub(crate) content: String,
    pub(crate) reasoning: String,
    /// Tool calls.
    pub(crate) calls: Vec<ToolCall>,
    /// Tokens of reasoning, counted per piece of text.
    pub(crate) reasoning_tokens: usize,
    /// Tokens behind reasoning that no delta has told yet: they are reasoning if the next one is.
    undecided_tokens: usize,
    thinking: bool,
}

impl Reply {
    pub(crate) fn new(reading: &Reading) -> Reply {
        Reply {
            thinking: matches!(reading, Reading::Tagged { start, .. } if start.in_reasoning()),
            reasoning_tokens: 0,
            undecided_tokens: 0,
            reader: reader(reading),
            content: String::new(),
            reasoning: String::new(),
            calls: Vec::new(),
        }
    }

    /// Parses a complete text.
    pub(super) fn whole(reading: &Reading, text: &str) -> Reply {
        let mut reply = Reply::new(reading);
        reply.push(text);
        reply.flush();
        reply
    }

    /// Reads calls as those of an answer that is not held to their form, before any text.
    pub(crate) fn unconstrain(&mut self) {
        self.reader.unconstrain();
    }

    /// Parses more text and returns the new deltas.
    pub(crate) fn push(&mut self, text: &str) -> Vec<AnswerDelta> {
        let deltas = self.reader.push(text);
        self.kept(deltas)
    }

    /// Parses a text of `tokens` tokens and returns the new deltas.
    pub(crate) fn push_tokens(&mut self, text: &str, tokens: usize) -> Vec<AnswerDelta> {
        let deltas = self.push(text);
        if self.thinking {
            // A tag or a call may follow the thoughts: most forms of calls are told only as a whole.
            match deltas.is_empty() {
                true => self.undecided_tokens += tokens,
                false => self.reasoning_tokens += tokens,
            }
        }
        deltas
    }

    /// Bytes at the end of the text so far that are in no delta yet.
    pub(crate) fn held_bytes(&self) -> usize {
        self.reader.held_bytes()
    }

    fn flush(&mut self) -> Vec<AnswerDelta> {
        let deltas = self.reader.finish();
        self.kept(deltas)
    }

    /// Flushes the text that was held back, at the end of the answer, and returns it. Of a loop, two copies remain in the
    /// message.
    pub(crate) fn finish(&mut self, reason: FinishReason) -> Vec<AnswerDelta> {
        let rest = self.flush();
        if self.calls.is_empty() {
            let last = if self.content.is_empty() { &mut self.reasoning } else { &mut self.content };
            loops::cut(last, reason);
        }
        rest
    }

    fn kept(&mut self, deltas: Vec<AnswerDelta>) -> Vec<AnswerDelta> {
        if let Some(first) = deltas.first() {
            let tokens = std::mem::take(&mut self.undecided_tokens);
            self.reasoning_tokens += if matches!(first, AnswerDelta::Reasoning(_)) { tokens } else { 0 };
        }
        deltas.iter().for_each(|delta| self.keep(delta));
        deltas
    }

    fn keep(&mut self, delta: &AnswerDelta) {
        self.thinking = matches!(delta, AnswerDelta::Reasoning(_));
        match delta {
            AnswerDelta::Content(text) => self.content.push_str(text),
            AnswerDelta::Reasoning(text) => self.reasoning.push_str(text),
            AnswerDelta::ToolCall { id, name, arguments, .. } => {
                let function = CalledFunction { name: name.clone(), arguments: arguments.clone() };
                self.calls.push(ToolCall { id: id.clone(), r#type: Function, function });
            }
            AnswerDelta::Arguments { index, text } => {
                if let Some(call) = self.calls.get_mut(*index) {
                    call.function.arguments.push_str(text);
                }
            }
        }
    }

    /// Returns the assistant's message.
    pub(crate) fn said(&self) -> AssistantMessage {
        let only_calls = self.content.is_empty() && !self.calls.is_empty();
        AssistantMessage {
            role: Assistant,
            content: (!only_calls).then(|| self.content.clone()),
            reasoning_content: (!self.reasoning.is_empty()).then(|| self.reasoning.clone()),
            tool_calls: self.calls.clone(),
        }
    }

    /// Returns the message as JSON, as conversations store it.
    pub(crate) fn message(&self) -> Value {
        value(&self.said())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kvik_text::answer::{AnswerStart, ArgumentsForm, Offer, ToolForm};
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_token_of_a_text_is_none_of_the_thoughts_before_it() {
        let start = AnswerStart::usual(true);
        let mut reply = Reply::new(&Reading::Tagged { start, offer: None });
        for token in ["So", ".", "</think>", "Hi", "!"] {
            reply.push_tokens(token, 1);
        }
        assert_eq!((reply.reasoning_tokens, reply.content.as_str()), (2, "Hi!"));
    }

    /// The tool `look`, in a form whose calls are told only as a whole.
    fn offer() -> Arc<Offer> {
        let [key, value, end] = ["\n<parameter=", ">\n", "\n</parameter>"].map(str::to_owned);
        let form = ToolForm {
            opening: String::new(),
            separator: String::new(),
            closing: String::new(),
            begin: "<tool_call>\n<function=".to_owned(),
            middle: String::new(),
            end: "\n</function>\n</tool_call>".to_owned(),
            arguments: ArgumentsForm::Parameters { key, value, end },
            several: false,
            loose: false,
        };
        let schema = json!({"type": "object", "properties": {"at": {"type": "string"}}});
        Arc::new(Offer { form, tools: vec![("look".to_owned(), schema)], calls_max: 1, certain: true })
    }

    #[test]
    fn a_call_behind_thoughts_is_none_of_them() {
        let call = ["<tool_call>", "\n<function=look", ">\n<parameter=at>\n", "all"];
        let end = "\n</parameter>\n</function>\n</tool_call>";
        for (end, calls, reason) in [(end, 1, FinishReason::Eos), ("", 0, FinishReason::Length)] {
            let start = AnswerStart::usual(true);
            let mut reply = Reply::new(&Reading::Tagged { start, offer: Some(offer()) });
            for token in ["So", " <", " 3", ".", "</think>"].into_iter().chain(call).chain([end]) {
                reply.push_tokens(token, 1);
            }
            reply.finish(reason);
            assert_eq!((reply.reasoning_tokens, reply.calls.len()), (4, calls), "{reply:?}");
        }
    }
}
