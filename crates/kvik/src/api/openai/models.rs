//! `GET /v1/models`: the one model that runs here, and its adapters.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    app::App,
    http::{answer::words, error::ApiError},
    serving::lora::LoraCard,
};

words! {
    List = "list";
    ModelWord = "model";
    Kvik = "kvik";
}

/// All models.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Models {
    object: List,
    data: Vec<Model>,
}

/// One model.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Model {
    id: String,
    object: ModelWord,
    created: u64,
    owned_by: Kvik,
    /// Of an adapter.
    #[serde(skip_serializing_if = "Option::is_none")]
    root: Option<String>,
    /// Of an adapter: the model that it changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    /// Of the model itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    meta: Option<Meta>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Meta {
    n_ctx: usize,
    n_vocab: usize,
    size: u64,
}

/// Lists the models.
pub(super) async fn list(State(app): State<Arc<App>>) -> Json<Models> {
    let adapters = app.serving.lora.cards().iter().map(|adapter| adapter_card(&app, adapter));
    Json(Models { object: List, data: std::iter::once(card(&app)).chain(adapters).collect() })
}

/// One of them.
pub(super) async fn get(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Model>, ApiError> {
    app.check_model(&id)?;
    let lora = &app.serving.lora;
    let adapter = lora.find(&id).map(|number| adapter_card(&app, &lora.cards()[number]));
    Ok(Json(adapter.unwrap_or_else(|| card(&app))))
}

/// An adapter is a model that has another one as its parent.
fn adapter_card(app: &App, adapter: &LoraCard) -> Model {
    let model = &app.serving.model;
    Model {
        id: adapter.name.clone(),
        object: ModelWord,
        created: model.loaded,
        owned_by: Kvik,
        root: Some(adapter.path.clone()),
        parent: Some(model.name.clone()),
        meta: None,
    }
}

fn card(app: &App) -> Model {
    let model = &app.serving.model;
    Model {
        id: model.name.clone(),
        object: ModelWord,
        created: model.loaded,
        owned_by: Kvik,
        root: None,
        parent: None,
        meta: Some(Meta {
            n_ctx: model.context,
            n_vocab: app.serving.tokenizer.vocab_len(),
            size: model.bytes,
        }),
    }
}
