//! A prompt that a body names, so that something is done with it in the cache: a conversation or a plain one.
//!
//! What is kept of a conversation is what every request that begins with it has in common: its template
//! is rendered with two different questions at the end, and the tokens before they part are the prompt.

use kvik_cache::Token;
use kvik_engine::schedule::prefix::common_prefix;
use kvik_text::template::QUESTIONS;

use crate::{
    api::request::{
        conversation::{Conversation, ConversationFields},
        parts::FromBody,
        prompt::PromptFields,
    },
    app::state::App,
    http::{error::ApiError, json::Body},
};

type Result<T> = std::result::Result<T, ApiError>;

/// What a body names: the prompt of a chat where it has `messages`, else that of a completion.
#[derive(Debug)]
pub(in crate::api) enum Named {
    Conversation(Box<ConversationFields>),
    Prompt(PromptFields),
}

impl FromBody for Named {
    fn from_body(body: &Body) -> Result<Named> {
        if body.has("messages") {
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

impl Named {
    /// What all requests that begin so have in common.
    pub(super) fn tokens(self, app: &App) -> Result<Vec<Token>> {
        let prompts = match self {
            Named::Conversation(fields) => return shared_tokens(app, &fields.conversation()?),
            Named::Prompt(fields) => fields.prompts()?,
        };
        let [prompt] = prompts.as_slice() else {
            let message = "`prompt` must be one prompt; keep others under other names";
            return Err(ApiError::field("prompt", message));
        };
        prompt.encode(app)
    }
}

/// What all conversations that begin so have in common.
pub(super) fn shared_tokens(app: &App, conversation: &Conversation) -> Result<Vec<u32>> {
    let [one, other] = QUESTIONS.map(|question| conversation.and_asked(question));
    let one = app.serving.encode_rendered(&one.render(&app.serving)?);
    let other = app.serving.encode_rendered(&other.render(&app.serving)?);
    let shared = common_prefix(&one, &other);
    if shared == 0 {
        return Err(ApiError::field("messages", "requests with these messages have no token in common"));
    }
    Ok(one[..shared].to_vec())
}
