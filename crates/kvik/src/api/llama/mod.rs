//! llama-server's own endpoints.

mod answer;
pub(crate) mod completion;

use axum::routing::{get, post};

use super::routes::{Route, at};

/// The routes of this dialect.
pub(super) fn routes() -> Vec<Route> {
    vec![
        // Without a version it is llama-server's own form.
        at(&["/completion", "/completions"], post(completion::completion)),
        at(&["/tokenize"], post(completion::tokenize)),
        at(&["/detokenize"], post(completion::detokenize)),
        at(&["/apply-template"], post(completion::apply_template)),
        at(&["/props"], get(completion::props)),
    ]
}
