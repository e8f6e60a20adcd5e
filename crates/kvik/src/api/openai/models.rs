//! `GET /v1/models`: the one model that runs here, and its adapters.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
};
use serde_json::{Value, json};

use crate::{app::App, http::error::ApiError, serving::lora::LoraCard};

/// Lists the models.
pub(super) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let adapters = app.serving.lora.cards().iter().map(|adapter| adapter_card(&app, adapter));
    let cards: Value = std::iter::once(card(&app)).chain(adapters).collect();
    Json(json!({"object": "list", "data": cards}))
}

/// One of them.
pub(super) async fn get(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    app.check_model(&id)?;
    let lora = &app.serving.lora;
    let adapter = lora.find(&id).map(|number| adapter_card(&app, &lora.cards()[number]));
    Ok(Json(adapter.unwrap_or_else(|| card(&app))))
}

/// An adapter is a model that has another one as its parent.
fn adapter_card(app: &App, adapter: &LoraCard) -> Value {
    let model = &app.serving.model;
    json!({
        "id": adapter.name,
        "object": "model",
        "created": model.loaded,
        "owned_by": "kvik",
        "root": adapter.path,
        "parent": model.name,
    })
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
