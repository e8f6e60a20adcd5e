//! An editable request: its texts and tools, and the tokens of its prompt.

use std::time::SystemTime;

use anyhow::{Context, bail};
use kvik_cache::Token;
use kvik_text::template::ChatTemplate;
use kvik_text::tokenizer::Tokenizer;
use serde_json::{Map, Value};

use kvik_server::{
    api::{as_chat, conversation_prompt},
    app::report::spans,
};

/// Renders and tokenizes requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PromptEncoder<'a> {
    pub(crate) tokenizer: &'a Tokenizer,
    /// `None` when the model has none; then only plain prompts can be encoded.
    pub(crate) template: Option<&'a ChatTemplate>,
}

/// The body of a chat, converted from any dialect to Chat Completions, or of a completion whose prompt is one text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RequestBody {
    fields: Map<String, Value>,
    /// The current time for the template.
    pub(crate) now: SystemTime,
}

impl RequestBody {
    /// Accepts a body with either `messages` (of OpenAI or Anthropic), `input` or `prompt`.
    pub(crate) fn new(body: Value, now: SystemTime) -> anyhow::Result<RequestBody> {
        let Value::Object(mut fields) = as_chat(body)? else { bail!("a request is a JSON object") };
        match (fields.get("messages"), fields.get("prompt")) {
            (Some(Value::Array(_)), _) | (None, Some(Value::String(_))) => {}
            _ => bail!("a request has `messages` (an array), `input` or `prompt` (a string)"),
        }
        if let Some(messages) = fields.get_mut("messages") {
            join_parts(messages);
        }
        Ok(RequestBody { fields, now })
    }

    /// Roles and texts of the messages; a plain prompt is one text with the role `prompt`.
    pub(crate) fn texts(&self) -> Vec<(String, String)> {
        match (self.fields.get("messages"), self.fields.get("prompt")) {
            (Some(messages), _) => spans::messages(messages)
                .into_iter()
                .map(|message| (message.role.to_owned(), message.content.into_owned()))
                .collect(),
            (None, Some(Value::String(prompt))) => vec![("prompt".to_owned(), prompt.clone())],
            _ => Vec::new(),
        }
    }

    /// Replaces one of the texts.
    pub(crate) fn set_text(&mut self, index: usize, text: String) {
        let slot = match self.fields.get_mut("messages") {
            Some(messages) => messages.get_mut(index).and_then(|message| message.get_mut("content")),
            None => self.fields.get_mut("prompt"),
        };
        if let Some(slot) = slot {
            *slot = Value::String(text);
        }
    }

    /// The tools of the request.
    pub(crate) fn tools(&self) -> &[Value] {
        self.fields.get("tools").and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn set_tools(&mut self, tools: Vec<Value>) {
        self.fields.insert("tools".to_owned(), Value::Array(tools));
    }

    /// The tokens of the prompt, as the server tokenizes it.
    pub(crate) fn tokens(&self, encoder: PromptEncoder<'_>) -> anyhow::Result<Vec<Token>> {
        if let Some(Value::String(prompt)) = self.fields.get("prompt")
            && !self.fields.contains_key("messages")
        {
            return Ok(encoder.tokenizer.encode(prompt, true, true));
        }
        let template =
            encoder.template.context("this model has no chat template; name one with --chat-template")?;
        let prompt = conversation_prompt(Value::Object(self.fields.clone()), template, self.now)?;
        Ok(encoder.tokenizer.encode_chat(&prompt.text, &prompt.inputs))
    }
}

/// Joins the content parts of every message into one text, as the server does for templates.
fn join_parts(messages: &mut Value) {
    let texts: Vec<String> =
        spans::messages(messages).into_iter().map(|message| message.content.into_owned()).collect();
    let Value::Array(messages) = messages else { return };
    for (message, text) in messages.iter_mut().zip(texts) {
        if let Some(content @ Value::Array(_)) = message.get_mut("content") {
            *content = Value::String(text);
        }
    }
}
