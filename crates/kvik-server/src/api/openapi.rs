//! `GET /openapi.json`: the OpenAPI 3.1 document of all routes.
//!
//! The document is checked in. A test generates it from the route table and the types of bodies and answers
//! (`tests/document.rs`), and fails where the two differ.

use std::sync::LazyLock;

use axum::{http::HeaderMap, response::Response};

use crate::http::tagged::Tagged;

/// The document, with one line per path and per schema.
pub(crate) const DOCUMENT: &str = include_str!("openapi.json");

pub(super) async fn document(headers: HeaderMap) -> Response {
    static TAGGED: LazyLock<Tagged> = LazyLock::new(|| {
        let bytes = DOCUMENT.as_bytes();
        Tagged::new("application/json", bytes.into(), blake3::hash(bytes).as_bytes())
    });
    TAGGED.clone().answer(&headers)
}
