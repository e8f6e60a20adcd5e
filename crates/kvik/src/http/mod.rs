//! HTTP: OpenAI's API, llama-server's beside it, health and metrics.
//!
//! Every route is the same three steps: read the body off the async threads (parse, check,
//! template, tokenize), submit to the engine, word the events. Never holds model or cache state.

mod app;
mod body;
mod cache_report;
mod cache_view;
mod chat;
mod chat_answer;
mod closing;
mod completions;
mod continuation;
mod diagnostics;
mod disk_metrics;
mod error;
mod explain;
mod fields;
mod generation;
mod guard;
mod json;
mod keep;
mod keys;
mod limits;
mod listen;
mod llama;
mod llama_answer;
mod messages;
mod metrics;
mod options;
mod origins;
mod prompt;
mod prompts;
mod readers;
#[cfg(test)]
mod situations;
mod tab;
mod tenant_usage;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_bodies;
#[cfg(test)]
mod tests_doors;
#[cfg(test)]
mod tests_kept;
#[cfg(test)]
mod tests_tenants;
mod text_answer;
mod unsupported;
mod usage;

pub(crate) use app::{App, AppConfig};
pub(crate) use chat::conversation_prompt;
pub(crate) use keys::Keys;
pub(crate) use listen::{Connections, serve};
pub(crate) use origins::{AllowedHost, AllowedOrigin, Hosts};
pub(crate) use prompts::restore as restore_prompts;
pub(crate) use tab::Clock;
pub(crate) use tenant_usage::listing as usage_listing;

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Path, Request, State},
    http::StatusCode,
    middleware,
    response::{IntoResponse, Response},
    routing::{delete, get, post},
};
use serde_json::{Value, json};

use error::ApiError;

/// All routes over one application.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::route))
        .route("/v1/completions", post(completions::route))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/v1/cache", get(cache_view::list).delete(cache_view::clear))
        .route("/v1/cache/explain", post(explain::route))
        .route("/v1/cache/evict", post(cache_view::evict))
        .route("/v1/cache/pin", post(cache_view::pin))
        .route("/v1/cache/pins", get(cache_view::pins).delete(cache_view::unpin_all))
        .route("/v1/cache/pins/{id}", delete(cache_view::unpin))
        .route("/v1/prompts", get(prompts::list))
        .route("/v1/prompts/{name}", get(prompts::get).put(prompts::put).delete(prompts::delete))
        .route("/v1/prompts/{name}/check", post(prompts::check))
        .route("/completion", post(llama::completion))
        .route("/tokenize", post(llama::tokenize))
        .route("/detokenize", post(llama::detokenize))
        .route("/apply-template", post(llama::apply_template))
        .route("/props", get(llama::props))
        .route("/v1/usage", get(tenant_usage::route))
        .route("/health", get(health))
        .merge(admin_routes())
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(app.clone(), guard::admit))
        .layer(origins::cors(&app.config.cors))
        .layer(middleware::from_fn_with_state(app.clone(), guard::check_sender))
        .layer(middleware::from_fn_with_state(app.clone(), guard::count))
        .layer(body::limit(&app))
        .with_state(app)
}

/// Routes that show what concerns all tenants.
fn admin_routes() -> Router<Arc<App>> {
    Router::new().route("/metrics", get(metrics::route)).route_layer(middleware::from_fn(guard::admins_only))
}

async fn unknown_route(request: Request) -> ApiError {
    let message = format!(
        "there is no route {} {}; kvik serves /v1/chat/completions, /v1/completions, /v1/models, /v1/cache (and /explain, /pin, /pins, /evict), /v1/prompts, /completion, /tokenize, /detokenize, /apply-template, /props, /v1/usage, /health and /metrics",
        request.method(),
        request.uri().path()
    );
    ApiError::new(StatusCode::NOT_FOUND, Some("unknown_route"), message)
}

async fn wrong_method(request: Request) -> ApiError {
    let message = format!("{} does not take {}", request.uri().path(), request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, Some("method_not_allowed"), message)
}

async fn health(State(app): State<Arc<App>>) -> Response {
    if app.is_stopping() {
        return ApiError::stopping().into_response();
    }
    Json(json!({"status": "ok"})).into_response()
}

async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [card(&app)]}))
}

async fn model(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
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
