//! `POST /v1/chat/completions/input_tokens`

use std::sync::Arc;

use axum::{Json, extract::State};
use serde_json::{Value, json};

use super::head::HeadFields;
use crate::{
    api::request::{conversation::ConversationFields, parts::FromBody},
    app::{body::JsonBody, state::App},
    http::error::ApiError,
};

/// Those of a chat that decide its prompt.
pub(super) type Fields = (HeadFields, ConversationFields);

/// Counts the tokens of the prompt that the same chat would have.
pub(super) async fn route(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Value>, ApiError> {
    app.read(body, |app, body| {
        let (head, conversation) = Fields::from_body(body)?;
        app.accept_model(&head.model)?;
        let prompt = conversation.conversation()?.render(&app.serving)?;
        let tokens = app.serving.encode_rendered(&prompt).len();
        Ok(Json(json!({"object": "response.input_tokens", "input_tokens": tokens})))
    })
    .await
}
