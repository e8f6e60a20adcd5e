//! The header that says which version of the API a client speaks.

use axum::{
    extract::Request,
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::http::error::ApiError;

const HEADER: &str = "anthropic-version";
/// Versions that are understood. The second takes away what chooses the next token (`temperature`, `top_p`, `top_k`); models
/// that run at home want it, so it is read in both.
const KNOWN: [&str; 2] = ["2023-06-01", "2026-10-21"];

/// Lets through what says a version that is known, or none: clients of llama-server's route say none.
pub(super) async fn check(request: Request, next: Next) -> Response {
    let version = request.headers().get(HEADER).map(|value| value.to_str().unwrap_or("?"));
    let Some(version) = version.filter(|version| !KNOWN.contains(version)) else {
        return next.run(request).await;
    };
    let known = KNOWN.join(", ");
    ApiError::field(HEADER, format!("`{HEADER}: {version}` is not known here; send one of {known}"))
        .into_response()
}
