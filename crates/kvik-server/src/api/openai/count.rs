//! `POST /v1/chat/completions/input_tokens`

use std::sync::Arc;

use axum::{Json, extract::State};
use serde::Serialize;

use super::head::HeadFields;
use crate::{
    api::{
        chat::previewed,
        request::{cache::CacheFields, conversation::ConversationFields, parts::FromBody},
    },
    app::{body::JsonBody, chat_text, state::App},
    described::JsonSchema,
    http::{answer::words, error::ApiError},
};

words! {
    InputTokens = "response.input_tokens";
}

/// How many tokens a prompt has.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::api) struct CountedTokens {
    object: InputTokens,
    input_tokens: usize,
}

impl CountedTokens {
    pub(in crate::api) fn new(input_tokens: usize) -> CountedTokens {
        CountedTokens { object: InputTokens, input_tokens }
    }
}

/// The fields of a chat that decide its prompt.
pub(super) type Fields = (HeadFields, ConversationFields, CacheFields);

/// Counts the tokens of the prompt that the same chat would have.
pub(super) async fn route(
    State(app): State<Arc<App>>,
    body: JsonBody,
) -> Result<Json<CountedTokens>, ApiError> {
    let tenant = body.caller.tenant.name.clone();
    app.read(body, move |app, body| {
        let (head, conversation, cache) = Fields::from_body(body)?;
        app.accept_model(&head.model)?;
        let kept = cache.keep()?.conversation;
        let chat = previewed(app, &tenant, conversation.chat()?, kept.as_deref())?;
        let prompt = chat_text::render(&app.serving, &chat)?;
        let tokens = app.serving.texts.encode_rendered(&prompt).len();
        Ok(Json(CountedTokens::new(app.token_scale(body).told(tokens))))
    })
    .await
}
