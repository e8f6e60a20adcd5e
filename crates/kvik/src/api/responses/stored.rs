//! `/v1/responses/{id}`: answers that are stored. What another tenant has does not exist.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, Query, State},
    response::Response,
};
use serde::Serialize;
use serde_json::Value;

use super::{items::ListedItems, output::ResponseWord};
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
    deleted: bool,
}

/// `GET /v1/responses/{id}`
pub(super) async fn get(
    State(shelf): State<Arc<Shelf>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Response> {
    answer(&shelf.server, caller, id, |stored| Ok(stored.response)).await
}

/// `DELETE /v1/responses/{id}`: with what is remembered of it.
pub(super) async fn delete(
    State(shelf): State<Arc<Shelf>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<DeletedResponse>> {
    let tenant = caller.tenant.name.clone();
    let server = shelf.server.clone();
    let large = server.responses.bytes(&tenant, &id)? > SMALL_BYTES;
    let delete = move |_| {
        forget(&shelf, &tenant, &id)?;
        shelf.server.responses.delete(&tenant, &id)?;
        Ok(Json(DeletedResponse { id, object: ResponseWord, deleted: true }))
    };
    server.readers.in_turn(Reader { tenant: caller.tenant.id, large }, delete).await
}

/// Forgets the summaries that say what was said in a stored response, as long as what came before it is there: they are
/// found by that.
fn forget(shelf: &Shelf, tenant: &str, id: &str) -> Result<()> {
    let responses = &shelf.server.responses;
    let said = responses.said_up_to(tenant, id).unwrap_or_default();
    let own = responses.get(tenant, id).map_or(0, |stored| stored.said.len());
    let forgotten = shelf.forget(tenant, &said, said.len().saturating_sub(own));
    forgotten.map_err(|error| ApiError::internal(error.to_string()))
}

/// `GET /v1/responses/{id}/input_items`
pub(super) async fn items(
    State(shelf): State<Arc<Shelf>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(page): Query<ListedItems>,
) -> Result<Response> {
    answer(&shelf.server, caller, id, move |stored| page.of(stored.input)).await
}

/// Answers with what a stored response of a caller shows.
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
