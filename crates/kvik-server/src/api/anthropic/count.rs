//! `POST /v1/messages/count_tokens`

use std::sync::Arc;

use axum::{Json, extract::State};
use serde::Serialize;

use super::body::{ManageFields, TellFields};
use crate::{
    api::{
        chat::previewed,
        request::{cache::CacheFields, parts::FromBody},
    },
    app::{body::JsonBody, chat_text, state::App},
    described::JsonSchema,
    http::error::ApiError,
};

/// How many tokens a prompt has.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct MessageTokens {
    input_tokens: usize,
}

/// The fields of a message that decide its prompt.
pub(super) type Fields = (TellFields, ManageFields, CacheFields);

/// Counts the tokens of the prompt that the same conversation would have.
pub(super) async fn route(
    State(app): State<Arc<App>>,
    body: JsonBody,
) -> Result<Json<MessageTokens>, ApiError> {
    let tenant = body.caller.tenant.name.clone();
    let input_tokens = app
        .read(body, move |app, body| {
            let (tell, manage, cache) = Fields::from_body(body)?;
            app.accept_model(&tell.model)?;
            let keep = cache.keep()?;
            manage.check_one_past(&keep)?;
            let chat = manage.told(tell, (app, &tenant), body)?;
            let chat = previewed(app, &tenant, chat, keep.conversation.as_deref())?;
            Ok(app.token_scale(body).told(chat_text::tokens(&app.serving, &chat)?.len()))
        })
        .await?;
    Ok(Json(MessageTokens { input_tokens }))
}
