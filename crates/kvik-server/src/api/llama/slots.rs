//! `/slots`: llama-server's view of running requests. Here requests run without slots: up to `--parallel` at
//! once, and each can reuse every cached prefix. A slot is therefore only a name: what a request with its
//! `id_slot` has computed can be saved, restored after a restart, and erased.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, Query, State},
    http::StatusCode,
};
use kvik_cache::Token;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    api::{kvik::prompts, request::parts::Part},
    app::{body::JsonBody, keys::Caller, slots::SlotKey, state::App},
    described::JsonSchema,
    http::error::ApiError,
};

type Result<T> = std::result::Result<T, ApiError>;

/// A body that is refused whatever it says.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Unread {}

impl Part for Unread {}

/// A request that may run.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Slot {
    id: usize,
    n_ctx: usize,
    speculative: bool,
    is_processing: bool,
}

/// What was done with what a slot has computed.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "SlotChanged")]
pub(super) enum Changed {
    Saved { id_slot: usize, filename: String, n_saved: usize },
    Restored { id_slot: usize, filename: String, n_restored: usize },
    Erased { id_slot: usize, n_erased: usize },
}

/// The query of `GET /slots`.
#[derive(Debug, Deserialize)]
pub(super) struct SlotsQuery {
    fail_on_no_slot: Option<String>,
}

/// `GET /slots`: one entry per request that may run at once. The first entries are the running ones; their
/// contents are not shown, because they may belong to other tenants.
pub(super) async fn list(
    State(app): State<Arc<App>>,
    Query(query): Query<SlotsQuery>,
) -> Result<Json<Vec<Slot>>> {
    if !app.config.shows_slots {
        return Err(ApiError::not_supported(
            "/slots is not shown: the server was started with --no-slots; leave that out",
        ));
    }
    let (slots, context) = (app.serving.model.parallel, app.serving.model.context);
    let stats = app.serving.engine.stats();
    // What is computed behind answers gives way to any request.
    let running = stats.running - stats.running_behind;
    if query.fail_on_no_slot.is_some() && running >= slots {
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, Some("no_slot"), "no slot available"));
    }
    let slot = |id: usize| Slot { id, n_ctx: context, speculative: false, is_processing: id < running };
    Ok(Json((0..slots).map(slot).collect()))
}

/// The query of `POST /slots/{id}`.
#[derive(Debug, Deserialize)]
pub(super) struct ActionQuery {
    action: Action,
}

/// The operation on a slot's prompt.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    Save,
    Restore,
    Erase,
}

/// The body of `POST /slots/{id}`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ActionFields {
    /// Where it is saved: a name for `/v1/prompts`, not a path. Not for `erase`.
    #[serde(default)]
    filename: String,
}

impl Part for ActionFields {}

/// `POST /slots/{id}?action=save`, `restore` or `erase`. A saved slot is a pinned prompt, in RAM and on disk,
/// which every request that begins with it can reuse, in any slot.
pub(super) async fn change(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    Query(ActionQuery { action }): Query<ActionQuery>,
    Extension(caller): Extension<Caller>,
    body: Result<JsonBody>,
) -> Result<Json<Changed>> {
    let Some(id) = id.parse::<usize>().ok().filter(|&id| id < app.serving.model.parallel) else {
        return Err(ApiError::field("id_slot", format!("there is no slot {id}")));
    };
    let key = (caller.tenant.id, id);
    match action {
        // Clients send no body with this action.
        Action::Erase => erase(app, key, &caller).await,
        Action::Save => save(app.clone(), key, &caller, filename(&app, body?).await?).await,
        Action::Restore => restore(&app, key, &caller, &filename(&app, body?).await?),
    }
}

async fn filename(app: &Arc<App>, body: JsonBody) -> Result<String> {
    let ActionFields { filename } = app.read(body, |_, body| body.read()).await?;
    if filename.is_empty() || filename.contains(['/', '\\']) {
        return Err(ApiError::field("filename", "`filename` must be a name, without folders"));
    }
    Ok(filename)
}

/// Returns the name of the pinned prompt.
fn kept_name(filename: &str) -> String {
    format!("slot:{filename}")
}

async fn save(app: Arc<App>, key: SlotKey, caller: &Caller, filename: String) -> Result<Json<Changed>> {
    let tokens = app.slots.get(key).ok_or_else(|| nothing_computed(key))?;
    prompts::keep(&app, caller, kept_name(&filename), json!({"prompt": &*tokens})).await?;
    Ok(Json(Changed::Saved { id_slot: key.1, filename, n_saved: tokens.len() }))
}

fn restore(app: &App, key: SlotKey, caller: &Caller, filename: &str) -> Result<Json<Changed>> {
    let Some(tokens) = prompts::kept_tokens(app, caller, &kept_name(filename)) else {
        let message = format!("nothing was saved as `{filename}`; POST /slots/{}?action=save saves", key.1);
        return Err(ApiError::field("filename", message));
    };
    app.slots.set(key, &tokens);
    Ok(Json(Changed::Restored { id_slot: key.1, filename: filename.to_owned(), n_restored: tokens.len() }))
}

async fn erase(app: Arc<App>, key: SlotKey, caller: &Caller) -> Result<Json<Changed>> {
    let tokens: Vec<Token> = app.slots.clear(key).map(|tokens| tokens.to_vec()).unwrap_or_default();
    let erased = tokens.len();
    prompts::evict(app, caller, tokens).await?;
    Ok(Json(Changed::Erased { id_slot: key.1, n_erased: erased }))
}

fn nothing_computed((_, slot): SlotKey) -> ApiError {
    let message = format!(
        "slot {slot} has computed nothing, or others have since; send a request with \"id_slot\": {slot} to /completion first"
    );
    ApiError::field("id_slot", message)
}
