//! Ollama's API.

mod answer;
mod chat;
mod embed;
mod fields;
mod generate;
mod messages;
mod models;
mod refused;

use schemars::JsonSchema;
use serde::Serialize;

use self::answer::{ChatLine, GenerateLine};
use super::route::{Answer, Dialect, Errors, Route, answers, at, gives};
use crate::http::error::ApiError;

/// The routes of this dialect.
pub(super) fn dialect() -> Dialect {
    let chat =
        gives::<ChatLine>("Answers a conversation").takes::<chat::Fields>().streams_lines::<ChatLine>();
    let generate = gives::<GenerateLine>("Continues a prompt")
        .takes::<generate::Fields>()
        .streams_lines::<GenerateLine>();
    let embed = gives::<embed::Embedded>("Embeds texts").takes::<embed::Fields>();
    let embed_one = gives::<embed::EmbeddedOne>("Embeds one text, unscaled").takes::<embed::Fields>();
    let show = gives::<models::Shown>("Shows the model").takes::<models::ShowFields>();
    let mut routes = vec![
        at(&["/api/chat"]).post(chat::route, chat),
        at(&["/api/generate"]).post(generate::route, generate),
        at(&["/api/embed"]).post(embed::embed, embed),
        at(&["/api/embeddings"]).post(embed::embeddings, embed_one),
        at(&["/api/tags"]).get(models::tags, gives::<models::Listed>("Lists the models")),
        at(&["/api/ps"]).get(models::running, gives::<models::Listed>("Lists the models in memory")),
        at(&["/api/show"]).post(models::show, show),
        at(&["/api/version"]).get(models::version, gives::<models::Version>("Says which version is spoken")),
    ];
    routes.extend(refusals());
    Dialect { name: "ollama", errors: Errors::of::<ErrorLine>(), routes }
}

/// What concerns many models, of which there is one.
fn refusals() -> [Route; 5] {
    let takes_none = |summary| answers(Answer::Refusal, summary);
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
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaError")]
struct ErrorLine {
    error: String,
}

impl From<&ApiError> for ErrorLine {
    fn from(error: &ApiError) -> ErrorLine {
        ErrorLine { error: error.to_string() }
    }
}
