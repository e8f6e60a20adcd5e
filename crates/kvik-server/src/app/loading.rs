//! Responses while the model loads: the page, and otherwise a request to retry, worded as llama-server's.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::json;

use super::guard::is_public;
use crate::{
    http::origins::{self, Senders},
    page,
};

/// Seconds after which a client may retry.
const RETRY_AFTER: &str = "1";

/// The routes of a server whose model loads. `is_open` if it will need no key.
pub fn router(senders: Senders, is_open: bool) -> Router {
    let cors = origins::cors(&senders.origins);
    let check = middleware::from_fn_with_state(Arc::new((senders, is_open)), check_sender);
    let router = Router::new().route(page::ROOT, get(page::index)).route(page::FILES, get(page::file));
    router.fallback(loading).method_not_allowed_fallback(loading).layer(cors).layer(check)
}

async fn check_sender(State(state): State<Arc<(Senders, bool)>>, request: Request, next: Next) -> Response {
    let (senders, is_open) = &*state;
    match senders.check(request.uri(), request.headers(), *is_open || is_public(&request)) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// The error while loading. llama-server's clients match this text, and the status as the code.
async fn loading() -> Response {
    let error = json!({
        "message": "Loading model",
        "type": "unavailable_error",
        "param": null,
        "code": StatusCode::SERVICE_UNAVAILABLE.as_u16(),
    });
    let retry = [(header::RETRY_AFTER, RETRY_AFTER)];
    (StatusCode::SERVICE_UNAVAILABLE, retry, Json(json!({"error": error}))).into_response()
}
