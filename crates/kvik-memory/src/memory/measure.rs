//! Sizes of messages in tokens.

use std::sync::Arc;
use std::time::SystemTime;

use kvik_text::answer::ReasoningForm;
use kvik_text::template::{ChatTemplate, RenderInput};
use kvik_text::tokenizer::{Tokenizer, text_bytes_max};

use crate::context::chain::text_of;
use kvik_cache::Token;
use serde_json::{Map, Value, json};

/// Tokens around a message if there is no template; the maximum of common templates.
const AROUND_MESSAGE: usize = 8;

/// Approximate tokens that the template adds to a message: half of what one more exchange adds to a prompt, without the
/// text.
fn around_message(tokenizer: &Tokenizer, template: Option<&ChatTemplate>) -> usize {
    const TEXT: &str = "word";
    let rendered = |exchanges: usize| {
        let exchange = ["user", "assistant"].map(|role| json!({"role": role, "content": TEXT}));
        let input = RenderInput {
            messages: vec![exchange; exchanges].concat().into(),
            tools: None,
            add_generation_prompt: false,
            enable_thinking: None,
            kwargs: Map::new(),
            now: SystemTime::UNIX_EPOCH,
        };
        let prompt = template?.render(&input).ok()?;
        Some(tokenizer.encode_chat(&prompt.text, &prompt.inputs).len())
    };
    // The first exchange may come with a system message, and the last one with thoughts.
    let (Some(short), Some(long)) = (rendered(2), rendered(3)) else { return AROUND_MESSAGE };
    let text = tokenizer.encode(TEXT, false, false).len();
    long.saturating_sub(short).div_ceil(2).saturating_sub(text)
}

/// The model whose conversations are measured.
pub trait MemoryModel: Send + Sync + 'static {
    /// Tokenizer of the model.
    fn tokenizer(&self) -> &Tokenizer;

    /// Chat template of the model, if it has one.
    fn template(&self) -> Option<&ChatTemplate>;

    /// Context size in tokens.
    fn context(&self) -> usize;
}

/// Measures messages with the tokenizer of the model.
pub(super) struct Measure {
    model: Arc<dyn MemoryModel>,
    /// Approximate tokens that the template adds to a message.
    pub(super) around_message: usize,
}

impl Measure {
    pub(super) fn new(model: Arc<dyn MemoryModel>) -> Measure {
        let around_message = around_message(model.tokenizer(), model.template());
        Measure { model, around_message }
    }

    /// The form of the model's reasoning, and the control tokens that it is written with.
    pub(super) fn reasoning(&self) -> (ReasoningForm, Vec<Token>) {
        let form = self.model.template().map(ChatTemplate::reasoning_form).unwrap_or_default();
        (form, self.model.tokenizer().controls_in(form.texts()))
    }

    /// Tokens of the model's context.
    pub(super) fn context(&self) -> usize {
        self.model.context()
    }

    /// Approximate tokens of a message.
    pub(super) fn message(&self, message: &Value) -> usize {
        let calls = message.get("tool_calls").map_or_else(String::new, Value::to_string);
        self.text(&text_of(message)) + self.text(&calls) + self.around_message
    }

    /// Tokens of a text; for a text too long to tokenize, a lower bound that is at least a whole context.
    pub(super) fn text(&self, text: &str) -> usize {
        match text.len() <= text_bytes_max(self.context()) {
            true => self.model.tokenizer().encode(text, false, false).len(),
            false => self.model.tokenizer().tokens_at_least(text.len()).max(self.context()),
        }
    }

    /// Cheap check whether messages may fit the context, before any work on them.
    pub(super) fn may_fit(&self, messages: &[Value]) -> bool {
        let mut left = text_bytes_max(self.context());
        messages.iter().all(|message| match left.checked_sub(text_of(message).len()) {
            Some(rest) => {
                left = rest;
                true
            }
            None => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvik_model::load::LoadedModel;

    #[test]
    fn messages_are_as_long_as_the_template_makes_them() {
        let loaded = LoadedModel::open(&kvik_testing::tiny_model()).unwrap();
        let (tokenizer, template) = (&loaded.tokenizer, loaded.own_template().unwrap().unwrap());
        let around =
            ["<|im_start|>assistant\n", "<|im_end|>\n"].map(|text| tokenizer.encode(text, false, true).len());
        assert_eq!(around_message(tokenizer, Some(&template)), around.iter().sum::<usize>());
        assert_eq!(around_message(tokenizer, None), AROUND_MESSAGE);
    }
}
