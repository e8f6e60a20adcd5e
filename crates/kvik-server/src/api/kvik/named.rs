//! A prompt that a body names for an operation on the cache: a conversation or a plain prompt.
//!
//! The prompt of a conversation is the prefix that all requests continuing it share: its template is rendered
//! with two different questions at the end, and the tokens before they diverge are the prompt.

use kvik_cache::Token;
use kvik_session::Chat;

use crate::{
    api::request::{
        conversation::ConversationFields,
        parts::FromBody,
        prompt::{Prompt, PromptFields},
    },
    app::{chat_text, state::App},
    http::{error::ApiError, json::Body},
};

type Result<T> = std::result::Result<T, ApiError>;

/// Fields that decide the tokens of a chat, and of a completion.
const OF_A_CHAT: [&str; 8] = [
    "messages",
    "tools",
    "tool_choice",
    "chat_template_kwargs",
    "add_generation_prompt",
    "enable_thinking",
    "reasoning_effort",
    "continue_final_message",
];
const OF_A_COMPLETION: [&str; 1] = ["prompt"];

/// A named prompt: that of a chat if the body has `messages`, otherwise that of a completion.
#[derive(Debug)]
pub(in crate::api) enum Named {
    Conversation(Box<ConversationFields>),
    Prompt(PromptFields),
}

impl FromBody for Named {
    fn from_body(body: &Body) -> Result<Named> {
        if is_chat(body) {
            return ConversationFields::from_body(body).map(Box::new).map(Named::Conversation);
        }
        PromptFields::from_body(body).map(Named::Prompt)
    }

    #[cfg(test)]
    fn describe(
        generator: &mut schemars::SchemaGenerator,
        all: &mut serde_json::Map<String, serde_json::Value>,
    ) {
        use crate::api::request::parts::schema;
        let kinds = [schema::<ConversationFields>(generator), schema::<PromptFields>(generator)];
        all.insert("anyOf".to_owned(), serde_json::json!(kinds));
    }
}

fn is_chat(body: &Body) -> bool {
    body.has("messages")
}

impl Named {
    /// Names of the fields from which the prompt of a body is read.
    pub(super) fn fields(body: &Body) -> &'static [&'static str] {
        if is_chat(body) { &OF_A_CHAT } else { &OF_A_COMPLETION }
    }

    /// Returns the tokens that all requests with this beginning share.
    pub(super) fn tokens(self, app: &App) -> Result<Vec<Token>> {
        match self {
            Named::Conversation(fields) => shared_tokens(app, &fields.chat()?),
            Named::Prompt(fields) => only(fields)?.encode(app),
        }
    }
}

/// The prompt of a body that is no conversation.
pub(super) fn only(fields: PromptFields) -> Result<Prompt> {
    let prompts = <[Prompt; 1]>::try_from(fields.prompts()?);
    let [prompt] = prompts.map_err(|_| {
        ApiError::field("prompt", "`prompt` must be one prompt; keep others under other names")
    })?;
    Ok(prompt)
}

/// The tokens with which all chats begin that go on from these messages.
pub(super) fn shared_tokens(app: &App, chat: &Chat) -> Result<Vec<Token>> {
    let shared = chat_text::shared_tokens(&app.serving, chat)?;
    if shared.is_empty() {
        return Err(ApiError::field("messages", "requests with these messages have no token in common"));
    }
    Ok(shared)
}
