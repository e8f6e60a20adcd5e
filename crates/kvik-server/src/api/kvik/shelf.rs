//! `/v1/shelf`: the models of the server, which of them are loaded, and their users.

use std::sync::Arc;

use axum::{Extension, Json, extract::State};
use serde::{Deserialize, Serialize};

use super::cache::block_bytes;
use crate::{
    api::request::parts::Part,
    app::{
        App,
        body::JsonBody,
        keys::Caller,
        shelf::{Listed, Shelf},
    },
    described::JsonSchema,
    http::{answer::words, error::ApiError},
};

words! {
    ShelfWord = "shelf";
}

/// The models of the server.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ShownShelf {
    object: ShelfWord,
    /// Bytes that the weights, keys and values of all models in memory may take; null where there is one model.
    bytes: Option<u64>,
    /// Whether models can be fetched and removed while it runs: `kvik serve --shelf`.
    can_pull: bool,
    /// The model that answers a request which names none; null without models.
    default: Option<String>,
    models: Vec<ShownModel>,
}

/// How a model stands.
#[derive(Debug, Serialize, JsonSchema)]
struct ShownModel {
    name: String,
    aliases: Vec<String>,
    /// Where it comes from; for a tenant its name.
    source: String,
    /// Whether it was pulled, so that it can be removed.
    is_pulled: bool,
    /// `loaded`, `loading`, `unloading` or `unloaded`.
    status: &'static str,
    /// Bytes that it may take in memory, with all the keys and values that it may have.
    bytes: u64,
    /// Bytes that it takes now: its weights, and the keys and values that are there; null unless it is loaded, and for a
    /// tenant.
    bytes_used: Option<u64>,
    /// What of it is in memory and on disk; null unless it is loaded, and for a tenant.
    held: Option<Held>,
    /// Requests that have it, and that wait for it; null for a tenant.
    in_use: Option<usize>,
    waiting: Option<usize>,
    /// Times it was loaded; null for a tenant.
    loads: Option<u64>,
    /// What loading took last.
    load_ms: u64,
    /// How much longer it stays if nobody asks for it; null for ever, and for a tenant.
    expires_in_s: Option<u64>,
    /// Why it could not be loaded last.
    failed: Option<String>,
}

/// Bytes that a model holds.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Held {
    weights: u64,
    /// What its keys and values may take, and what is in there.
    kv: u64,
    kv_used: u64,
    /// Keys and values on disk; null without one.
    disk: Option<u64>,
}

impl Held {
    fn of(app: &App) -> Held {
        let stats = app.serving.engine.stats();
        let on_disk = stats.disk.as_ref().filter(|disk| disk.is_on_disk());
        Held {
            weights: app.serving.model.bytes,
            kv: stats.kv_bytes as u64,
            kv_used: stats.kv_used_bytes() as u64,
            disk: on_disk.map(|disk| (disk.tier.used * block_bytes(&stats)) as u64),
        }
    }
}

/// A model to load or to take out of memory.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ModelFields {
    model: String,
}

impl Part for ModelFields {}

/// `GET /v1/shelf`
pub(super) async fn list(
    State(shelf): State<Arc<Shelf>>,
    Extension(caller): Extension<Caller>,
) -> Json<ShownShelf> {
    shown(&shelf, &caller)
}

/// `POST /v1/shelf/load`: answers when the model is loaded.
pub(super) async fn load(
    State(shelf): State<Arc<Shelf>>,
    body: JsonBody,
) -> Result<Json<ShownShelf>, ApiError> {
    let caller = body.caller.clone();
    let ModelFields { model } = shelf.server.read(body).await?;
    let _lease = shelf.take(&model, &caller).await?;
    Ok(shown(&shelf, &caller))
}

/// `POST /v1/shelf/unload`: the model accepts no more requests, and is unloaded when the running ones have
/// ended.
pub(super) async fn unload(
    State(shelf): State<Arc<Shelf>>,
    body: JsonBody,
) -> Result<Json<ShownShelf>, ApiError> {
    let caller = body.caller.clone();
    caller.as_admin()?;
    let ModelFields { model } = shelf.server.read(body).await?;
    shelf.close(&model, &caller)?;
    Ok(shown(&shelf, &caller))
}

/// `POST /v1/shelf/reload`: reads config.toml and the models on disk again.
pub(super) async fn reload(
    State(shelf): State<Arc<Shelf>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<ShownShelf>, ApiError> {
    caller.as_admin()?;
    shelf.reload().await?;
    Ok(shown(&shelf, &caller))
}

fn shown(shelf: &Shelf, caller: &Caller) -> Json<ShownShelf> {
    let models = shelf.list(caller).into_iter().map(|listed| ShownModel::of(listed, caller)).collect();
    Json(ShownShelf {
        object: ShelfWord,
        bytes: shelf.budget(),
        can_pull: shelf.can_pull(),
        default: shelf.default_name(caller),
        models,
    })
}

impl ShownModel {
    /// Describes a model to a caller. What tells of the requests of others is for the admin.
    fn of(listed: Listed, caller: &Caller) -> ShownModel {
        let all = caller.admin;
        let app = listed.app.as_deref().filter(|_| all);
        ShownModel {
            source: listed.source.for_caller(all, &listed.name).to_owned(),
            failed: listed.why_failed(caller),
            name: listed.name,
            aliases: listed.aliases,
            is_pulled: listed.is_pulled,
            status: listed.status,
            bytes: listed.bytes,
            bytes_used: app.map(App::bytes_used),
            held: app.map(Held::of),
            in_use: all.then_some(listed.in_use),
            waiting: all.then_some(listed.waiting),
            loads: all.then_some(listed.loads),
            load_ms: u64::try_from(listed.load_time.as_millis()).unwrap_or(u64::MAX),
            expires_in_s: listed.expires_in.filter(|_| all).map(|left| left.as_secs()),
        }
    }
}
