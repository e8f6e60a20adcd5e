//! The header with the API version of a client.

use axum::{
    extract::Request,
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::http::error::ApiError;

const HEADER: &str = "anthropic-version";
/// Known versions. The second one removes the sampling parameters (`temperature`, `top_p`, `top_k`); they are
/// useful with local models and are therefore read in both.
const KNOWN: [&str; 2] = ["2023-06-01", "2026-10-21"];

/// Passes requests with a known version or with none: clients of llama-server's route send none.
pub(super) async fn check(request: Request, next: Next) -> Response {
    let version = request.headers().get(HEADER).map(|value| value.to_str().unwrap_or("?"));
    let Some(version) = version.filter(|version| !KNOWN.contains(version)) else {
        return next.run(request).await;
    };
    let known = KNOWN.join(", ");
    ApiError::field(HEADER, format!("`{HEADER}: {version}` is not known here; send one of {known}"))
        .into_response()
}
