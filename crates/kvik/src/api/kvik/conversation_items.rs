//! `/v1/conversations/{id}/items`: what was said in a conversation, as the items of OpenAI's Conversations API, and what a
//! client keeps beside it.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Extension, Json,
    extract::{Path, Query as Parameters, State},
    response::Response,
};
use kvik_memory::conversations::ConversationKey;
use serde::Deserialize;
use serde_json::Value;

use super::conversations::{ShownConversation, answer, head_of};
use crate::{
    api::{
        request::parts::Part,
        responses::items::{self, ListedItems},
    },
    app::{body::JsonBody, conversations::check_values, kept_answer::KeptAnswer, keys::Caller, shelf::Shelf},
    described::JsonSchema,
    http::{
        error::ApiError,
        json::{Json as Any, wrong},
    },
};

type Result<T> = std::result::Result<T, ApiError>;

/// Pairs of `metadata`, and characters of their keys and values, at most: OpenAI's limits.
const PAIRS_MAX: usize = 16;
const KEY_CHARS_MAX: usize = 64;
const VALUE_CHARS_MAX: usize = 512;

/// Items that are added to a conversation.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct AddFields {
    /// As those of `input` of `/v1/responses`.
    #[schemars(with = "Vec<serde_json::Map<String, Value>>")]
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
            let messages = messages(&items)?;
            let mut held = server.conversations.hold(&tenant, &id)?;
            check_values(&messages)?;
            held.make_room(&messages)?;
            held.append(&messages)?;
            Ok(Json(head_of(held.key(), held.head())))
        })
        .await
}

/// The messages that items say.
pub(super) fn messages(items: &Any) -> Result<Vec<Value>> {
    items::told("items", &items.0)
}

/// What is the same in the ids of all items of a conversation.
fn label(key: &ConversationKey) -> &str {
    key.id.rsplit('_').next().unwrap_or(&key.id)
}

/// What a client keeps beside a conversation: names and texts.
pub(super) fn metadata(field: &Any) -> Result<BTreeMap<String, String>> {
    const FIELD: &str = "metadata";
    let Value::Object(pairs) = &field.0 else { return Err(wrong(FIELD, "an object", &field.0)) };
    let refused = |path: String, text: String| Err(ApiError::field(&path, format!("`{path}` {text}")));
    if pairs.len() > PAIRS_MAX {
        return refused(FIELD.to_owned(), format!("has {} pairs, the limit is {PAIRS_MAX}", pairs.len()));
    }
    let mut kept = BTreeMap::new();
    for (name, value) in pairs {
        let path = || format!("{FIELD}.{}", name.chars().take(KEY_CHARS_MAX).collect::<String>());
        if name.chars().count() > KEY_CHARS_MAX {
            return refused(path(), format!("has a name of more than {KEY_CHARS_MAX} characters"));
        }
        let text = value.as_str().ok_or_else(|| wrong(path(), "a string", value))?;
        if text.chars().count() > VALUE_CHARS_MAX {
            return refused(path(), format!("has more than {VALUE_CHARS_MAX} characters"));
        }
        kept.insert(name.clone(), text.to_owned());
    }
    Ok(kept)
}
