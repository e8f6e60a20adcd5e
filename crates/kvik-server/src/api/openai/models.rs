//! `GET /v1/models`: the models of this server, and the adapters of the loaded ones.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, State},
};
use serde::Serialize;

use crate::{
    app::{
        App,
        keys::Caller,
        shelf::{Listed, Shelf},
    },
    described::JsonSchema,
    http::{answer::words, error::ApiError},
};
use kvik_serving::lora::LoraCard;

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
    /// Whether it is in memory, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
}

/// Whether a model is in memory, as llama-server says it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Status {
    /// `loaded`, `loading`, `unloading` or `unloaded`.
    value: &'static str,
    /// Why it cannot be loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Meta {
    n_ctx: usize,
    n_vocab: usize,
    size: u64,
}

impl Status {
    fn of(listed: &Listed, caller: &Caller) -> Status {
        Status { value: listed.status, failed: listed.why_failed(caller) }
    }
}

/// Lists the models.
pub(super) async fn list(
    State(shelf): State<Arc<Shelf>>,
    Extension(caller): Extension<Caller>,
) -> Json<Models> {
    if let Some(app) = shelf.only() {
        return Json(Models { object: List, data: with_adapters(&app, &caller).collect() });
    }
    let of = |listed: Listed| {
        let mut models: Vec<Model> = match &listed.app {
            Some(app) => with_adapters(app, &caller).collect(),
            None => vec![listed_card(&listed)],
        };
        models[0].status = Some(Status::of(&listed, &caller));
        models
    };
    Json(Models { object: List, data: shelf.list(&caller).into_iter().flat_map(of).collect() })
}

/// Lists a loaded model, its adapters, and the names under which clients are told another window.
fn with_adapters<'a>(app: &'a App, caller: &'a Caller) -> impl Iterator<Item = Model> + 'a {
    let adapters = app.serving.lora.cards().iter().map(|adapter| adapter_card(app, caller, adapter));
    let name = &app.serving.model.name;
    let told = app.config.told_windows.iter().filter(move |told| told.name != *name);
    std::iter::once(card(app, name)).chain(adapters).chain(told.map(|told| card(app, &told.name)))
}

/// Describes a model that is not loaded.
fn listed_card(listed: &Listed) -> Model {
    let created = listed.card.as_ref().map_or(0, |card| card.loaded);
    let id = listed.name.clone();
    Model {
        id,
        object: ModelWord,
        created,
        owned_by: Kvik,
        root: None,
        parent: None,
        meta: None,
        status: None,
    }
}

/// Shows one model or adapter.
pub(super) async fn get(
    State(shelf): State<Arc<Shelf>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Model>, ApiError> {
    let listed = shelf.get(&id, &caller)?;
    let Some(app) = &listed.app else {
        return Ok(Json(Model { status: Some(Status::of(&listed, &caller)), ..listed_card(&listed) }));
    };
    app.check_model(&id)?;
    let lora = &app.serving.lora;
    let adapter = lora.find(&id).map(|number| adapter_card(app, &caller, &lora.cards()[number]));
    let name = app.told_window(&id).map_or(&app.serving.model.name, |told| &told.name);
    Ok(Json(adapter.unwrap_or_else(|| card(app, name))))
}

/// Describes an adapter as a model whose parent is the base model.
fn adapter_card(app: &App, caller: &Caller, adapter: &LoraCard) -> Model {
    let model = &app.serving.model;
    Model {
        id: adapter.name.clone(),
        object: ModelWord,
        created: model.loaded,
        owned_by: Kvik,
        root: Some(adapter.path.for_caller(caller.admin, &adapter.name).to_owned()),
        parent: Some(model.name.clone()),
        meta: None,
        status: None,
    }
}

/// Describes a model under one of its names, with the window that clients are told under it.
fn card(app: &App, name: &str) -> Model {
    let model = &app.serving.model;
    Model {
        id: name.to_owned(),
        object: ModelWord,
        created: model.loaded,
        owned_by: Kvik,
        root: None,
        parent: None,
        meta: Some(Meta {
            n_ctx: app.token_scale_under(name).told(model.context),
            n_vocab: app.serving.texts.tokenizer.vocab_len(),
            size: model.bytes,
        }),
        status: None,
    }
}
