//! `GET /v1/models`: the one model that runs here.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
};
use serde_json::{Value, json};

use crate::{app::App, http::error::ApiError};

/// Lists the models.
pub(super) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [card(&app)]}))
}

/// One of them.
pub(super) async fn get(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    app.check_model(&id)?;
    Ok(Json(card(&app)))
}

fn card(app: &App) -> Value {
    let model = &app.serving.model;
    json!({
        "id": model.name,
        "object": "model",
        "created": model.loaded,
        "owned_by": "kvik",
        "meta": {
            "n_ctx": model.context,
            "n_vocab": app.serving.tokenizer.vocab_len(),
            "size": model.bytes,
        },
    })
}
