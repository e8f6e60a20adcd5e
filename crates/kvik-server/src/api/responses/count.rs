//! `POST /v1/responses/input_tokens`

use std::sync::Arc;

use axum::{Json, extract::State};

use super::body::{KeepFields, TellFields};
use crate::{
    api::{
        chat::previewed,
        openai::count::CountedTokens,
        request::{cache::CacheFields, parts::FromBody},
    },
    app::{body::JsonBody, chat_text, state::App},
    http::error::ApiError,
};

/// The fields of a response that decide its prompt.
pub(super) type Fields = (TellFields, KeepFields, CacheFields);

/// Counts the tokens of the prompt that the same input would have.
pub(super) async fn route(
    State(app): State<Arc<App>>,
    body: JsonBody,
) -> Result<Json<CountedTokens>, ApiError> {
    let tenant = body.caller.tenant.name.clone();
    let tokens = app
        .read(body, move |app, body| {
            let (tell, keep, cache) = Fields::from_body(body)?;
            app.accept_model(&tell.model)?;
            let keeping = cache.keep()?;
            keep.check_one_past(&tell, &keeping)?;
            let kept = keep.conversation()?.or(keeping.conversation);
            let said = tell.said(app, &tenant, body)?;
            let chat = previewed(app, &tenant, said.chat, kept.as_deref())?;
            Ok(app.token_scale(body).told(chat_text::tokens(&app.serving, &chat)?.len()))
        })
        .await?;
    Ok(Json(CountedTokens::new(tokens)))
}
