//! `/v1/conversations/{id}/items`: the messages of a conversation, as items of OpenAI's Conversations API.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, Query as Parameters, State},
    response::Response,
};
use kvik_memory::conversations::ConversationKey;
use serde::Deserialize;

use super::{
    conversation_answers::{ShownConversation, head_of},
    conversations::answer,
};
use crate::{
    api::{
        request::parts::Part,
        responses::items::{self, ListedItems},
    },
    app::{body::JsonBody, conversations::check_values, kept_answer::KeptAnswer, keys::Caller, shelf::Shelf},
    described::JsonSchema,
    http::{error::ApiError, json::Json as Any},
};

type Result<T> = std::result::Result<T, ApiError>;

/// Items that are added to a conversation.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct AddFields {
    /// As those of `input` of `/v1/responses`.
    #[schemars(with = "Vec<serde_json::Map<String, serde_json::Value>>")]
    items: Any,
}

impl Part for AddFields {}

/// `GET /v1/conversations/{id}/items`
pub(crate) async fn list(
    State(shelf): State<Arc<Shelf>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Parameters(page): Parameters<ListedItems>,
) -> Result<Response> {
    answer(&shelf.server, caller, &id, move |key, _, messages| {
        page.of(items::of_conversation(label(key), &messages)).map(KeptAnswer::Json)
    })
    .await
}

/// `POST /v1/conversations/{id}/items`
pub(crate) async fn add(
    State(shelf): State<Arc<Shelf>>,
    Path(id): Path<String>,
    body: JsonBody,
) -> Result<Json<ShownConversation>> {
    let tenant = body.caller.tenant.name.clone();
    shelf
        .server
        .read_by(body, move |server, body| {
            let AddFields { items } = body.read()?;
            let messages = items::told("items", &items.0)?;
            let mut held = server.conversations.hold(&tenant, &id)?;
            check_values(&messages)?;
            held.make_room(&messages)?;
            held.append(&messages)?;
            Ok(Json(head_of(held.key(), held.head())))
        })
        .await
}

/// Returns the part that the ids of all items of a conversation share.
fn label(key: &ConversationKey) -> &str {
    key.id.rsplit('_').next().unwrap_or(&key.id)
}
