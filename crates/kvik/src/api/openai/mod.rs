//! OpenAI's API: chat completions, completions, models.

pub(crate) mod chat;
pub(crate) mod chat_answer;
pub(crate) mod completions;
mod continuation;
mod messages;
mod models;
pub(crate) mod text_answer;
mod tools;

use axum::routing::{get, post};

use super::routes::{Route, at};

/// The routes of this dialect.
pub(super) fn routes() -> Vec<Route> {
    vec![
        at(&["/v1/chat/completions", "/chat/completions"], post(chat::route)),
        at(&["/v1/completions"], post(completions::route)),
        at(&["/v1/models", "/models"], get(models::list)),
        at(&["/v1/models/{*id}", "/models/{*id}"], get(models::get)),
    ]
}
