//! Ollama's API.

mod answer;
mod chat;
mod embed;
mod fields;
mod generate;
mod messages;
mod models;
mod refused;
mod shapes;

use serde_json::{Value, json};

use super::route::{Dialect, Route, at, gives};
use crate::http::error::ApiError;

/// The routes of this dialect.
pub(super) fn dialect() -> Dialect {
    let chat = gives(shapes::chat, "Answers a conversation").takes::<chat::Fields>().streams();
    let generate = gives(shapes::generated, "Continues a prompt").takes::<generate::Fields>().streams();
    let embeds = |answer, summary| gives(answer, summary).takes::<embed::Fields>();
    let show = gives(shapes::shown, "Shows the model").takes::<models::ShowFields>();
    let mut routes = vec![
        at(&["/api/chat"]).post(chat::route, chat),
        at(&["/api/generate"]).post(generate::route, generate),
        at(&["/api/embed"]).post(embed::embed, embeds(shapes::embedded, "Embeds texts")),
        at(&["/api/embeddings"])
            .post(embed::embeddings, embeds(shapes::embedding, "Embeds one text, unscaled")),
        at(&["/api/tags"]).get(models::tags, gives(shapes::models, "Lists the one model")),
        at(&["/api/ps"]).get(models::running, gives(shapes::models, "Lists the model that runs")),
        at(&["/api/show"]).post(models::show, show),
        at(&["/api/version"]).get(models::version, gives(shapes::version, "Says which version is spoken")),
    ];
    routes.extend(refusals());
    Dialect { name: "ollama", error, routes }
}

/// What concerns many models, of which there is one.
fn refusals() -> [Route; 5] {
    let takes_none = |summary| gives(shapes::refused, summary);
    let says = |summary| takes_none(summary).takes::<models::ShowFields>();
    [
        at(&["/api/pull"]).post(refused::pull, says("Refused: a model is loaded at the start")),
        at(&["/api/push"]).post(refused::push, says("Refused: nothing is sent anywhere")),
        at(&["/api/create"]).post(refused::create, says("Refused: no model is made here")),
        at(&["/api/copy"]).post(refused::copy, says("Refused: there is one model")),
        at(&["/api/delete"]).delete(refused::delete, takes_none("Refused: the running model stays")),
    ]
}

/// Errors as Ollama words them.
fn error(error: &ApiError) -> Value {
    json!({"error": error.to_string()})
}
