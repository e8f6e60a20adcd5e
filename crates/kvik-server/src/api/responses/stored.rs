//! `/v1/responses/{id}`: stored answers. Those of other tenants are not visible.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, Query, State},
    response::Response,
};
use kvik_memory::deletions::{Deletion, Owner};
use serde::Serialize;
use serde_json::Value;

use super::{
    items::{ListedItems, with_ids},
    output::ResponseWord,
};
use crate::{
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

/// `GET /v1/responses/{id}`
pub(super) async fn get(
    State(shelf): State<Arc<Shelf>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Response> {
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
        let large = server.responses.bytes(&owner.tenant, &id)? > SMALL_BYTES;
        let (deleting, own) = (server.clone(), owner.clone());
        let delete = move |_| remove(&deleting, &own);
        server.readers.in_turn_behind_models(Reader { tenant: caller.tenant.id, large }, delete).await?;
    }
    let pending = shelf.is_pending(owner).await;
    Ok(Json(DeletedResponse { id, object: ResponseWord, deleted: !pending, pending }))
}

/// Deletes a stored response and records what else must be deleted: summaries of its messages are found by
/// the messages before it, while those exist.
fn remove(server: &Server, owner: &Owner) -> Result<()> {
    let Owner { tenant, id } = owner;
    let said = server.responses.said_up_to(tenant, id).unwrap_or_default();
    let own = server.responses.get(tenant, id).map_or(0, |stored| stored.said.len());
    let left = Deletion::of(tenant, &said, said.len().saturating_sub(own));
    server.deletions.begin(owner, left)?;
    Ok(server.responses.delete(tenant, id)?)
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
