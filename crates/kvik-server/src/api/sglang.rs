//! Endpoints that routers query on a node, under SGLang's names: model, server and load.
//!
//! SGLang's router (Python package `sglang-router`) sends requests to a node by prefix or by load, and
//! queries only these endpoints and `/health`. They are answered without loading a model.

use std::sync::Arc;

use axum::{Extension, Json, extract::State, middleware};
use kvik_cache::BLOCK_POSITIONS;
use serde::Serialize;

use super::route::{Dialect, Errors, at, gives};
use crate::{
    app::{guard, keys::Caller, shelf::Shelf, state::App},
    described::JsonSchema,
    http::error::{ApiError, ErrorBody},
};

type Result<T> = std::result::Result<T, ApiError>;

/// Returns the routes of this dialect.
pub(super) fn dialect() -> Dialect {
    let model = gives::<ModelInfo>("Says which model a node has, for routers");
    let server = gives::<ServerInfo>("Says what a node is, for routers");
    let load = gives::<Vec<Load>>("Says what a node has to do, for routers");
    let of_server = vec![
        at(&["/model_info", "/get_model_info"]).get(model_info, model),
        at(&["/server_info", "/get_server_info"]).get(server_info, server),
        // The load covers all tenants.
        at(&["/get_load"])
            .get(get_load, load)
            .through(|methods| methods.route_layer(middleware::from_fn(guard::admins_only))),
    ];
    Dialect { name: "sglang", errors: Errors::of::<ErrorBody>(), routes: Vec::new(), of_server }
}

/// The model of a node.
#[derive(Debug, Serialize, JsonSchema)]
struct ModelInfo {
    /// Its name here: what requests name it by.
    model_path: String,
    tokenizer_path: String,
    is_generation: bool,
    /// Its architecture, as GGUF names it.
    model_type: String,
}

/// A node.
#[derive(Debug, Serialize, JsonSchema)]
struct ServerInfo {
    model_path: String,
    served_model_name: String,
    version: &'static str,
    /// Copies of the model behind this address.
    dp_size: usize,
    /// Tokens of a prompt and its answer together; null while the model is not in memory, as the next two.
    max_total_tokens: Option<usize>,
    max_running_requests: Option<usize>,
    max_total_num_tokens: Option<usize>,
}

/// What one model of a node has to do.
#[derive(Debug, Serialize, JsonSchema)]
struct Load {
    dp_rank: usize,
    /// Requests that run or wait.
    num_reqs: usize,
    num_waiting_reqs: usize,
    /// Tokens whose keys and values running requests hold.
    num_tokens: usize,
}

/// `GET /model_info`
async fn model_info(
    State(shelf): State<Arc<Shelf>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<ModelInfo>> {
    let name = first(&shelf, &caller)?;
    let model_type = shelf.describe(&name, &caller).await?.family;
    Ok(Json(ModelInfo { tokenizer_path: name.clone(), model_path: name, is_generation: true, model_type }))
}

/// `GET /server_info`
async fn server_info(
    State(shelf): State<Arc<Shelf>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<ServerInfo>> {
    let name = first(&shelf, &caller)?;
    let app = shelf.open_apps().into_iter().find(|app| app.serving.model.name == name);
    let of_model = |number: fn(&App) -> usize| app.as_deref().map(number);
    Ok(Json(ServerInfo {
        served_model_name: name.clone(),
        model_path: name,
        version: concat!("kvik-", env!("CARGO_PKG_VERSION")),
        dp_size: 1,
        max_total_tokens: of_model(|app| app.serving.model.context),
        max_running_requests: of_model(|app| app.serving.model.parallel),
        max_total_num_tokens: of_model(|app| app.serving.engine.stats().cache.blocks * BLOCK_POSITIONS),
    }))
}

/// `GET /get_load`
async fn get_load(State(shelf): State<Arc<Shelf>>) -> Json<Vec<Load>> {
    let apps = shelf.open_apps().into_iter().enumerate();
    Json(apps.map(|(dp_rank, app)| Load::of(dp_rank, &app)).collect())
}

impl Load {
    fn of(dp_rank: usize, app: &App) -> Load {
        let stats = app.serving.engine.stats();
        Load {
            dp_rank,
            num_reqs: stats.running - stats.running_behind + stats.waiting,
            num_waiting_reqs: stats.waiting,
            num_tokens: stats.cache.in_use * BLOCK_POSITIONS,
        }
    }
}

/// Returns the model for requests that name none: the first one listed.
fn first(shelf: &Shelf, caller: &Caller) -> Result<String> {
    let listed = shelf.list(caller).into_iter().next();
    listed.map(|listed| listed.name).ok_or_else(|| ApiError::no_model("", "this server has no model yet"))
}
