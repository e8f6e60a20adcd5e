//! Checks that every request passes: its route, its sender, and its rate limit.

use std::{sync::Arc, time::Instant};

use axum::{
    Extension,
    body::to_bytes,
    extract::{MatchedPath, Request, State},
    http::{StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{keys::Caller, rate_limits, server::Server, tally::Counts};
use crate::{http::error::ApiError, page};

/// Liveness routes. They and the page need no key, and are not rate limited.
pub(crate) const HEALTH: [&str; 2] = ["/health", "/v1/health"];
/// Readiness routes, with the same exemptions.
pub(crate) const READY: [&str; 2] = ["/ready", "/v1/ready"];

/// The status of a request whose client left before it was answered, as nginx logs it: no HTTP status says that.
const CLIENT_LEFT: u16 = 499;

/// Maximum bytes of an error text from axum.
const WORDED_BYTES: usize = 4 << 10;

/// Rejects requests that a foreign page makes a browser send.
pub(crate) async fn check_sender(
    State(server): State<Arc<Server>>,
    request: Request,
    next: Next,
) -> Response {
    let is_open = is_public(&request) || server.keys().are_open();
    match server.senders.check(request.uri(), request.headers(), is_open) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// Identifies the caller. Rejects requests without a valid key or over the rate limit, and all of them once
/// the server is stopping.
pub(crate) async fn admit(State(server): State<Arc<Server>>, mut request: Request, next: Next) -> Response {
    if is_public(&request) {
        return next.run(request).await;
    }
    let Some(caller) = server.keys().caller(request.headers()) else {
        return server.keys().refusal().into_response();
    };
    if server.is_stopping() {
        return ApiError::stopping().into_response();
    }
    let tenant = caller.tenant.clone();
    request.extensions_mut().insert(caller);
    let mut response = match rate_limits::take_request(&tenant, server.now()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    };
    if response.status() == StatusCode::TOO_MANY_REQUESTS {
        server.tally.add(&tenant.name, Counts::REFUSED);
    }
    rate_limits::add_headers(&tenant, server.now(), response.headers_mut());
    response
}

/// Whether a request needs no key.
pub(crate) fn is_public(request: &Request) -> bool {
    let path = request.uri().path();
    HEALTH.contains(&path) || READY.contains(&path) || page::has(path)
}

/// Rejects everyone but the admin.
pub(crate) async fn admins_only(
    Extension(caller): Extension<Caller>,
    request: Request,
    next: Next,
) -> Response {
    match caller.as_admin() {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// Rewrites as JSON the errors that axum returns as plain text, as for a malformed path or query.
pub(crate) async fn word_in_json(request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let status = response.status();
    let is_json = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    if is_json || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let text = to_bytes(body, WORDED_BYTES).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let message = if text.is_empty() { reason(status) } else { &text };
    parts.headers.remove(header::CONTENT_TYPE);
    parts.headers.remove(header::CONTENT_LENGTH);
    let mut worded = ApiError::new(status, None, message).into_response();
    worded.headers_mut().extend(parts.headers);
    worded
}

fn reason(status: StatusCode) -> &'static str {
    status.canonical_reason().unwrap_or("the request failed")
}

/// Counts the request under its route. Paths without a route share one label, so that a scanner cannot make
/// the metrics grow.
pub(crate) async fn count(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("unknown", MatchedPath::as_str).to_owned();
    let mut counted = Counted { server, route, start: Instant::now(), status: CLIENT_LEFT };
    let response = next.run(request).await;
    counted.status = response.status().as_u16();
    response
}

/// A request that is counted and logged when it is dropped: once it is answered, or before if its client leaves.
struct Counted {
    server: Arc<Server>,
    route: String,
    start: Instant,
    status: u16,
}

impl Drop for Counted {
    fn drop(&mut self) {
        // A panic is the server's fault, and the client is still there.
        let is_fault = std::thread::panicking();
        let status = if is_fault { StatusCode::INTERNAL_SERVER_ERROR.as_u16() } else { self.status };
        let route = std::mem::take(&mut self.route);
        tracing::debug!(route, status, ms = self.start.elapsed().as_millis() as u64, "http");
        self.server.metrics.request(route, status);
    }
}
