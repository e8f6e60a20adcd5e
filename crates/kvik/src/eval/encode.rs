//! Encodes a conversation as tokens: the context, and the question after it.

use std::ops::Range;
use std::time::SystemTime;

use anyhow::Context;
use kvik_cache::Token;
use kvik_text::template::{ChatTemplate, Prompt, RenderInput};
use kvik_text::tokenizer::Tokenizer;
use serde_json::Value;

use super::written::{Question, WrittenCase, content};

/// Encodes conversations with the tokens of one model.
pub(crate) struct Encoder<'a> {
    pub(crate) tokenizer: &'a Tokenizer,
    /// Without a template, conversations become plain text that the model continues.
    pub(crate) template: Option<&'a ChatTemplate>,
}

/// A conversation in tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SplitPrompt {
    /// The part that is compressed if the question is unseen.
    pub(crate) context: Vec<Token>,
    /// The question, and the text that the template writes before an answer.
    pub(crate) question: Vec<Token>,
}

impl SplitPrompt {
    /// Tokens of context and question.
    pub(crate) fn len(&self) -> usize {
        self.context.len() + self.question.len()
    }

    /// Context and question.
    pub(crate) fn whole(&self) -> Vec<Token> {
        [&self.context[..], &self.question].concat()
    }
}

impl Encoder<'_> {
    /// The tokens of a conversation.
    ///
    /// # Errors
    /// If the template refuses it, or context or question are empty.
    pub(crate) fn encode(&self, conversation: &WrittenCase) -> anyhow::Result<SplitPrompt> {
        let prompt = self.render(&conversation.messages, conversation)?;
        let split = match &conversation.question {
            Question::LastTokens(tokens) => self.split_tokens(&prompt, *tokens),
            Question::From(text) => {
                let at = prompt.text.rfind(text).with_context(|| format!("no message contains `{text}`"))?;
                self.split_text(&prompt, at)
            }
            Question::LastMessage => {
                let before = &conversation.messages[..conversation.messages.len() - 1];
                anyhow::ensure!(!before.is_empty(), "there is no message before the question");
                let at = Self::common(&self.render_part(before, conversation)?, &prompt.text);
                self.split_text(&prompt, at)
            }
        };
        anyhow::ensure!(!split.context.is_empty(), "there is nothing before the question");
        anyhow::ensure!(!split.question.is_empty(), "the question is empty");
        Ok(split)
    }

    /// Number of tokens of a text.
    pub(crate) fn count(&self, text: &str) -> usize {
        self.tokenizer.encode(text, false, false).len()
    }

    fn render(&self, messages: &[Value], conversation: &WrittenCase) -> anyhow::Result<Prompt> {
        match self.template {
            Some(template) => Ok(template.render(&input(messages, conversation.thinking, true))?),
            None => Ok(plain(messages, &conversation.lead)),
        }
    }

    /// The text of the messages before the question.
    fn render_part(&self, messages: &[Value], conversation: &WrittenCase) -> anyhow::Result<String> {
        match self.template {
            Some(template) => Ok(template.render(&input(messages, conversation.thinking, false))?.text),
            None => Ok(plain(messages, "").text),
        }
    }

    /// Length in bytes of the common prefix of two texts: a template may render a message differently when it is the
    /// last.
    fn common(one: &str, other: &str) -> usize {
        let same = one.char_indices().zip(other.chars()).take_while(|((_, a), b)| a == b);
        same.last().map_or(0, |((at, last), _)| at + last.len_utf8())
    }

    fn split_text(&self, prompt: &Prompt, at: usize) -> SplitPrompt {
        let tokens = |range: Range<usize>| {
            let clip = |input: &Range<usize>| input.start.max(range.start)..input.end.min(range.end);
            let inputs = prompt.inputs.iter().map(clip).filter(|input| input.start < input.end);
            let inputs: Vec<_> = inputs.map(|i| i.start - range.start..i.end - range.start).collect();
            self.tokenizer.encode_prompt(&prompt.text[range.clone()], &inputs)
        };
        SplitPrompt { context: self.with_bos(tokens(0..at)), question: tokens(at..prompt.text.len()) }
    }

    fn split_tokens(&self, prompt: &Prompt, tokens: usize) -> SplitPrompt {
        let mut context = self.split_text(prompt, prompt.text.len()).context;
        let question = context.split_off(context.len().saturating_sub(tokens));
        SplitPrompt { context, question }
    }

    fn with_bos(&self, mut tokens: Vec<Token>) -> Vec<Token> {
        if let Some(bos) = self.tokenizer.required_bos().filter(|bos| tokens.first() != Some(bos)) {
            tokens.insert(0, bos);
        }
        tokens
    }
}

fn input(messages: &[Value], thinking: Option<bool>, ask: bool) -> RenderInput {
    RenderInput {
        messages: Value::Array(messages.to_vec()),
        tools: None,
        add_generation_prompt: ask,
        enable_thinking: thinking,
        kwargs: serde_json::Map::new(),
        now: SystemTime::UNIX_EPOCH,
    }
}

/// Messages as plain text, followed by the beginning of the answer.
fn plain(messages: &[Value], lead: &str) -> Prompt {
    let texts: Vec<&str> =
        messages.iter().map(content).chain([lead]).filter(|text| !text.is_empty()).collect();
    Prompt { text: texts.join("\n\n"), inputs: Vec::new() }
}
