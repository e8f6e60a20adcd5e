//! The routes: one table, of which the router and the answer to an unknown path are made.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Request, State},
    http::StatusCode,
    middleware,
    response::{IntoResponse, Response},
    routing::{MethodRouter, get},
};
use serde_json::json;

use super::{kvik, llama, openai};
use crate::{
    app::{guard, metrics, state::App},
    http::{error::ApiError, origins},
};

/// Paths that lead to the same, and what answers there.
pub(super) type Route = (&'static [&'static str], MethodRouter<Arc<App>>);

/// All of them: those of each dialect, and those of the server itself.
fn table() -> Vec<Route> {
    [openai::routes(), llama::routes(), kvik::routes(), operation()].concat()
}

/// What whoever runs the server asks for.
fn operation() -> Vec<Route> {
    vec![
        at(&guard::PUBLIC, get(health)),
        // It shows what concerns all tenants.
        at(&["/metrics"], get(metrics::route).route_layer(middleware::from_fn(guard::admins_only))),
    ]
}

/// One route under all its names.
pub(super) fn at(paths: &'static [&'static str], to: MethodRouter<Arc<App>>) -> Route {
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
