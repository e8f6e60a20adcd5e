//! `/v1/conversations/{id}/items`: the messages of a conversation, as items of OpenAI's Conversations API.
//!
//! A conversation holds messages, of which one may be several items: thoughts, a text, calls. Items are made when they are
//! read, and their ids tell the index of the message.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, Query as Parameters, State},
    response::Response,
};
use kvik_memory::{
    context::leading_systems,
    conversations::{ConversationHead, ConversationKey, Held},
};
use serde::Deserialize;
use serde_json::Value;

use super::{
    conversation_answers::ShownConversation,
    conversations::{answer, taken_back},
};
use crate::{
    api::{
        request::parts::Part,
        responses::items::{self, InputItems, ListedItems},
    },
    app::{
        body::JsonBody, conversations::check_values, kept_answer::KeptAnswer, keys::Caller,
        responses::ResponseError, shelf::Shelf,
    },
    described::JsonSchema,
    http::{answer::value, error::ApiError, json::Json as Any},
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

/// `POST /v1/conversations/{id}/items`: answers with the added items, as OpenAI's clients expect.
pub(crate) async fn add(
    State(shelf): State<Arc<Shelf>>,
    Path(id): Path<String>,
    body: JsonBody,
) -> Result<Response> {
    let (tenant, name) = (body.caller.tenant.id, body.caller.tenant.name.clone());
    shelf
        .server
        .read_by(body, move |server, body| {
            let AddFields { items } = body.read()?;
            let messages = items::told("items", &items.0, &server.responses, &name)?;
            let mut held = server.conversations.hold(&name, &id)?;
            held.make_room(&messages)?;
            let mut all = held.messages()?;
            all.extend_from_slice(&messages);
            check_values(&all)?;
            let added = value(&added(held.key(), held.head(), &messages));
            let answer = server.answer_with(tenant, KeptAnswer::Json(added))?;
            held.append(&messages)?;
            Ok(answer)
        })
        .await
}

/// Returns the items of messages that are about to be appended: system messages at their beginning replace those of the
/// conversation.
fn added(key: &ConversationKey, head: &ConversationHead, messages: &[Value]) -> InputItems {
    let (systems, said) = messages.split_at(leading_systems(messages));
    let before = if systems.is_empty() { head.systems } else { systems.len() };
    let first = before + head.messages - head.systems;
    let indexed = systems.iter().enumerate().chain((first..).zip(said));
    InputItems::all(items::of_messages(label(key), indexed))
}

/// `GET /v1/conversations/{id}/items/{item_id}`
pub(crate) async fn get(
    State(shelf): State<Arc<Shelf>>,
    Extension(caller): Extension<Caller>,
    Path((id, item_id)): Path<(String, String)>,
) -> Result<Response> {
    answer(&shelf.server, caller, &id, move |key, _, messages| {
        let mut items = items::of_conversation(label(key), &messages).into_iter();
        let item = items.find(|item| item["id"] == item_id.as_str());
        item.map(KeptAnswer::Json).ok_or_else(|| ResponseError::NoItem(item_id).into())
    })
    .await
}

/// `DELETE /v1/conversations/{id}/items/{item_id}`: takes back the last message, by the id of its item.
pub(crate) async fn delete(
    State(shelf): State<Arc<Shelf>>,
    Extension(caller): Extension<Caller>,
    Path((id, item_id)): Path<(String, String)>,
) -> Result<Json<ShownConversation>> {
    taken_back(&shelf, caller, id, move |held| index_of_last(held, &item_id)).await
}

/// Returns the index of the last message, whose item has this id. Thoughts go with what was said after them.
///
/// # Errors
/// If the item is of an earlier message, or the message has a text or a call beside it: a message is removed as a whole,
/// and nothing that the client did not name is lost.
fn index_of_last(held: &Held, item_id: &str) -> Result<usize> {
    let (messages, label) = (held.messages()?, label(held.key()));
    let last = messages.len().saturating_sub(1);
    let is_it = |item: &Value| item["id"] == item_id;
    let of_last = items::of_messages(label, (last..).zip(&messages[last..]));
    if !of_last.iter().any(is_it) {
        let is_earlier = items::of_conversation(label, &messages).iter().any(is_it);
        let unknown = || ApiError::from(ResponseError::NoItem(item_id.to_owned()));
        return Err(if is_earlier { not_last(item_id) } else { unknown() });
    }
    if of_last.iter().any(|item| !is_it(item) && item["type"] != "reasoning") {
        return Err(not_alone(item_id, last));
    }
    Ok(last)
}

fn not_last(item_id: &str) -> ApiError {
    let why = "is not of the last message, and only that one can be removed by its item";
    let instead = "DELETE /v1/conversations/{id}/messages?from=N removes a message with all behind it";
    ApiError::field("item_id", format!("the item `{item_id}` {why}; {instead}"))
}

fn not_alone(item_id: &str, last: usize) -> ApiError {
    let why = "is one of several of the last message, which is removed as a whole";
    let instead = format!("DELETE /v1/conversations/{{id}}/messages?from={last} does so");
    ApiError::field("item_id", format!("the item `{item_id}` {why}; {instead}"))
}

/// Returns the part that the ids of all items of a conversation share.
fn label(key: &ConversationKey) -> &str {
    key.id.rsplit('_').next().unwrap_or(&key.id)
}
