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

/// Lets through what says a version that is known.
pub(super) async fn check(request: Request, next: Next) -> Response {
    let known = KNOWN.join(", ");
    let refused = match request.headers().get(HEADER).map(|value| value.to_str().unwrap_or("?")) {
        Some(version) if KNOWN.contains(&version) => return next.run(request).await,
        Some(version) => format!("`{HEADER}: {version}` is not known here; send one of {known}"),
        None => format!("the header `{HEADER}` is missing; send it with one of {known}"),
    };
    ApiError::field(HEADER, refused).into_response()
}
