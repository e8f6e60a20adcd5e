//! `/v1/responses/{id}`: stored answers. Those of other tenants are not visible.

use std::{collections::BTreeSet, sync::Arc};

use axum::{
    Extension, Json,
    extract::{Path, Query, State},
    response::Response,
};
use kvik_memory::{
    context::ChainId,
    deletions::{Deletion, Owner},
    memory::{Preceding, chain_after},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    items::{ListedItems, with_ids},
    output::ResponseWord,
};
use crate::{
    api::request::compaction,
    app::{kept_answer::KeptAnswer, keys::Caller, responses::StoredResponse, server::Server, shelf::Shelf},
    described::JsonSchema,
    http::{body_memory::SMALL_BYTES, error::ApiError, readers::Reader},
};

type Result<T> = std::result::Result<T, ApiError>;

/// A response that was deleted.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DeletedResponse {
    id: String,
    object: ResponseWord,
    /// Nothing of it is left, in memory or in a file.
    deleted: bool,
    /// Something of it is left, and is deleted as soon as that can be done, also after a restart.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pending: bool,
}

/// How a stored answer is to be sent.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Sending {
    stream: bool,
}

/// `GET /v1/responses/{id}`
pub(super) async fn get(
    State(shelf): State<Arc<Shelf>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(Sending { stream }): Query<Sending>,
) -> Result<Response> {
    if stream {
        // A client that reads events finds none in JSON, and takes the answer for an empty one.
        let message = "`stream`: a stored answer is sent as a whole; leave it out";
        return Err(ApiError::field("stream", message));
    }
    answer(&shelf.server, caller, id, |stored| Ok(stored.response)).await
}

/// `DELETE /v1/responses/{id}`: deletes an answer and the summaries of it.
pub(super) async fn delete(
    State(shelf): State<Arc<Shelf>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<DeletedResponse>> {
    let owner = Owner::new(&caller.tenant.name, &id);
    let server = &shelf.server;
    if server.deletions.get(&owner).is_none() {
        let large = server.responses.bytes(&owner.tenant, &id).is_ok_and(|bytes| bytes > SMALL_BYTES);
        let (deleting, own) = (server.clone(), owner.clone());
        let delete = move |_| remove(&deleting, &own);
        server.readers.in_turn_behind_models(Reader { tenant: caller.tenant.id, large }, delete).await?;
    }
    let pending = shelf.is_pending(owner).await;
    Ok(Json(DeletedResponse { id, object: ResponseWord, deleted: !pending, pending }))
}

/// Deletes a stored response and records what else must be deleted: the summaries that cover its messages, which are
/// found by these, those before them and those behind them, while all of them exist.
fn remove(server: &Server, owner: &Owner) -> Result<()> {
    server.responses.check_stored(&owner.tenant, &owner.id)?;
    let left = Deletion::of_beginnings(beginnings(server, owner));
    server.deletions.begin(owner, left)?;
    Ok(server.responses.delete(&owner.tenant, &owner.id)?)
}

/// Identities of the beginnings of conversations that end in a response or in one that continues it.
fn beginnings(server: &Server, Owner { tenant, id }: &Owner) -> BTreeSet<ChainId> {
    let store = &server.responses;
    let told = |id: &str, before: Option<ChainId>| {
        let said = store.get(tenant, id).map(|stored| stored.said).unwrap_or_default();
        chain_of(server, tenant, said, before)
    };
    // Nothing is remembered of what continues a deleted response: it was deleted with that, and what is answered later is
    // not stored, nor summarised.
    let Ok(path) = store.used(tenant, id) else { return BTreeSet::new() };
    let earlier = path.iter().skip(1).rev();
    let before = earlier.fold(None, |before, id| told(id, before).last().copied().or(before));
    let (continued, mut found) = (store.continued(tenant), BTreeSet::new());
    let mut open = vec![(id.clone(), before)];
    while let Some((id, before)) = open.pop() {
        let own = told(&id, before);
        let end = own.last().copied().or(before);
        open.extend(continued.get(&id).into_iter().flatten().map(|next| (next.clone(), end)));
        found.extend(own);
    }
    found
}

/// Identities of the beginnings that end with each of these messages, behind those that `before` identifies or a
/// compaction item in them. One that cannot be opened any more has no identity that is known.
fn chain_of(server: &Server, tenant: &str, mut said: Vec<Value>, before: Option<ChainId>) -> Vec<ChainId> {
    let opened = compaction::expand(&mut said, |item| server.seal.open(tenant, item));
    let Ok(item) = opened else { return Vec::new() };
    let preceding = match (&item, before) {
        (Some(item), _) => Preceding::Item(item),
        (None, Some(before)) => Preceding::Messages(before),
        (None, None) => Preceding::Nothing,
    };
    chain_after(tenant, preceding, &said)
}

/// `GET /v1/responses/{id}/input_items`
pub(super) async fn items(
    State(shelf): State<Arc<Shelf>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(page): Query<ListedItems>,
) -> Result<Response> {
    let label = id.strip_prefix("resp_").unwrap_or(&id).to_owned();
    answer(&shelf.server, caller, id, move |stored| page.of(with_ids(&label, stored.input))).await
}

/// Answers with a part of a caller's stored response, which `show` selects.
async fn answer(
    server: &Arc<Server>,
    caller: Caller,
    id: String,
    show: impl FnOnce(StoredResponse) -> Result<Value> + Send + 'static,
) -> Result<Response> {
    let tenant = caller.tenant.name.clone();
    let bytes = server.responses.bytes(&tenant, &id)?;
    let read = move |server: &Server| Ok(KeptAnswer::Json(show(server.responses.get(&tenant, &id)?)?));
    server.answer_kept(&caller, bytes, read).await
}
