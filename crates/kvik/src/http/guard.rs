//! What every request passes on its way in: whom it is for, who sends it, how often.

use std::{sync::Arc, time::Instant};

use axum::{
    Extension,
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{app::App, error::ApiError, keys::Caller, limits, origins};

/// The only route that wants no key.
pub(crate) const HEALTH: &str = "/health";

/// Turns away what a foreign page makes a browser send.
///
/// Whether the host is the server's matters where no key is asked for: a page that took another
/// name for itself has no key. An origin matters always, because a proxy may add the key.
pub(crate) async fn check_sender(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match check(&app, &request) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

fn check(app: &App, request: &Request) -> Result<(), ApiError> {
    if is_public(request) || app.keys().are_open() {
        app.config.hosts.check(request.uri(), request.headers())?;
    }
    origins::check_origin(request.headers(), &app.config.cors)
}

/// Finds out who asks. Turns away who has no key or comes too often, and everybody once the server
/// is stopping.
pub(crate) async fn admit(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    if is_public(&request) {
        return next.run(request).await;
    }
    let Some(caller) = app.keys().caller(request.headers()) else {
        return ApiError::unauthorized().into_response();
    };
    if app.is_stopping() {
        return ApiError::stopping().into_response();
    }
    let tenant = caller.tenant.clone();
    request.extensions_mut().insert(caller);
    let mut response = match limits::take_request(&tenant, request.method(), app.now()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    };
    limits::add_headers(&tenant, app.now(), response.headers_mut());
    response
}

fn is_public(request: &Request) -> bool {
    request.uri().path() == HEALTH
}

/// Lets only the admin through.
pub(crate) async fn admins_only(
    Extension(caller): Extension<Caller>,
    request: Request,
    next: Next,
) -> Response {
    if caller.admin { next.run(request).await } else { ApiError::admins_only().into_response() }
}

/// Counts the request under its route; paths that no route has are one label, so that a scanner
/// cannot make the metrics grow.
pub(crate) async fn count(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("unknown", MatchedPath::as_str).to_owned();
    let start = Instant::now();
    let response = next.run(request).await;
    tracing::debug!(
        route,
        status = response.status().as_u16(),
        ms = start.elapsed().as_millis() as u64,
        "http"
    );
    app.metrics.request(route, response.status());
    response
}
