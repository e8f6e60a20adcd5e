//! `POST /v1/responses/input_tokens`

use std::sync::Arc;

use axum::{Json, extract::State};

use super::body::{KeepFields, TellFields};
use crate::{
    api::{openai::count::CountedTokens, request::parts::FromBody},
    app::{body::JsonBody, chat_text, state::App},
    http::error::ApiError,
};

/// The fields of a response that decide its prompt.
pub(super) type Fields = (TellFields, KeepFields);

/// Counts the tokens of the prompt that the same input would have.
pub(super) async fn route(
    State(app): State<Arc<App>>,
    body: JsonBody,
) -> Result<Json<CountedTokens>, ApiError> {
    let caller = body.caller.clone();
    let tokens = app
        .read(body, move |app, body| {
            let (tell, _) = Fields::from_body(body)?;
            app.accept_model(&tell.model)?;
            let said = tell.said(app, &caller.tenant.name, body)?;
            Ok(app.token_scale(body).told(chat_text::tokens(&app.serving, &said.chat)?.len()))
        })
        .await?;
    Ok(Json(CountedTokens::new(tokens)))
}
