//! `/v1/responses/{id}`: answers that are stored. What another tenant has does not exist.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, Query, State},
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    app::{keys::Caller, state::App},
    http::error::ApiError,
};

type Result<T> = std::result::Result<T, ApiError>;

/// Items that are listed at most.
const LISTED_MAX: usize = 100;

/// Which part of the list is asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ListedItems {
    limit: Option<usize>,
    order: Option<String>,
}

/// The same, for the document of all routes.
pub(super) const ITEM_PARAMETERS: [(&str, &str); 2] = [
    ("limit", "Items at most; 20 where nothing is asked for"),
    ("order", "`desc`, the newest first, or `asc`"),
];

/// `GET /v1/responses/{id}`
pub(super) async fn get(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>> {
    Ok(Json(app.responses.get(&caller.tenant.name, &id)?.response))
}

/// `DELETE /v1/responses/{id}`
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>> {
    app.responses.delete(&caller.tenant.name, &id)?;
    Ok(Json(json!({"id": id, "object": "response", "deleted": true})))
}

/// `GET /v1/responses/{id}/input_items`
pub(super) async fn items(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(page): Query<ListedItems>,
) -> Result<Json<Value>> {
    let mut items = app.responses.get(&caller.tenant.name, &id)?.input;
    if page.order.as_deref() != Some("asc") {
        items.reverse();
    }
    let limit = page.limit.unwrap_or(20).clamp(1, LISTED_MAX);
    let has_more = items.len() > limit;
    items.truncate(limit);
    Ok(Json(json!({
        "object": "list",
        "data": items,
        "first_id": items.first().map(|item| item["id"].clone()),
        "last_id": items.last().map(|item| item["id"].clone()),
        "has_more": has_more,
    })))
}
