//! `GET /openapi.json`: the document of all routes in OpenAPI 3.1.
//!
//! It is checked in. A test makes it from the table of routes and the types of their bodies and answers
//! (`tests/document.rs`), and fails where the two differ.

use std::sync::LazyLock;

use axum::{http::HeaderMap, response::Response};

use crate::http::tagged::Tagged;

/// A line for each path and each schema.
pub(super) const DOCUMENT: &str = include_str!("openapi.json");

pub(super) async fn document(headers: HeaderMap) -> Response {
    static TAGGED: LazyLock<Tagged> = LazyLock::new(|| {
        let bytes = DOCUMENT.as_bytes();
        Tagged::new("application/json", bytes.into(), blake3::hash(bytes).as_bytes())
    });
    TAGGED.clone().answer(&headers)
}
