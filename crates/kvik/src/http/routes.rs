//! The routes: one table, of which the router and the answer to an unknown path are made.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Path, Request, State},
    http::StatusCode,
    middleware,
    response::{IntoResponse, Response},
    routing::{MethodRouter, delete, get, post},
};
use serde_json::{Value, json};

use super::{
    app::App, cache_view, chat, completions, error::ApiError, explain, guard, llama, metrics, origins,
    prompts, tenant_usage,
};

/// Paths that lead to the same, and what answers there.
type Route = (&'static [&'static str], MethodRouter<Arc<App>>);

/// All of them, with the names that llama-server has for them besides.
fn table() -> Vec<Route> {
    vec![
        at(&["/v1/chat/completions", "/chat/completions"], post(chat::route)),
        at(&["/v1/completions"], post(completions::route)),
        // Without a version it is llama-server's own form.
        at(&["/completion", "/completions"], post(llama::completion)),
        at(&["/v1/models", "/models"], get(models)),
        at(&["/v1/models/{*id}", "/models/{*id}"], get(model)),
        at(&["/v1/cache"], get(cache_view::list).delete(cache_view::clear)),
        at(&["/v1/cache/explain"], post(explain::route)),
        at(&["/v1/cache/evict"], post(cache_view::evict)),
        at(&["/v1/cache/pin"], post(cache_view::pin)),
        at(&["/v1/cache/pins"], get(cache_view::pins).delete(cache_view::unpin_all)),
        at(&["/v1/cache/pins/{id}"], delete(cache_view::unpin)),
        at(&["/v1/prompts"], get(prompts::list)),
        at(&["/v1/prompts/{name}"], get(prompts::get).put(prompts::put).delete(prompts::delete)),
        at(&["/v1/prompts/{name}/check"], post(prompts::check)),
        at(&["/tokenize"], post(llama::tokenize)),
        at(&["/detokenize"], post(llama::detokenize)),
        at(&["/apply-template"], post(llama::apply_template)),
        at(&["/props"], get(llama::props)),
        at(&["/v1/usage"], get(tenant_usage::route)),
        at(&guard::PUBLIC, get(health)),
        // It shows what concerns all tenants.
        at(&["/metrics"], get(metrics::route).route_layer(middleware::from_fn(guard::admins_only))),
    ]
}

fn at(paths: &'static [&'static str], to: MethodRouter<Arc<App>>) -> Route {
    (paths, to)
}

/// All routes over one application.
pub(crate) fn router(app: Arc<App>) -> Router {
    let mut router = Router::new();
    let mut known: Vec<&str> = Vec::new();
    for (paths, to) in table() {
        for path in paths {
            router = router.route(path, to.clone());
        }
        known.extend(paths);
    }
    let known: Arc<str> = known.join(", ").into();
    router
        .fallback(move |request| unknown_route(known.clone(), request))
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(app.clone(), guard::admit))
        .layer(origins::cors(&app.config.senders.origins))
        .layer(middleware::from_fn_with_state(app.clone(), guard::check_sender))
        .layer(middleware::from_fn(guard::word_in_json))
        .layer(middleware::from_fn_with_state(app.clone(), guard::count))
        .with_state(app)
}

async fn unknown_route(known: Arc<str>, request: Request) -> ApiError {
    let message =
        format!("there is no route {} {}; kvik serves {known}", request.method(), request.uri().path());
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
