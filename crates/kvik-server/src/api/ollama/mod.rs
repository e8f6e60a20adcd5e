//! Ollama's API.

mod answer;
mod chat;
mod embed;
mod fields;
mod generate;
mod messages;
mod models;
mod pull;
mod refused;

use std::sync::Arc;

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use serde::Serialize;

use self::answer::{ChatLine, DoneReason, Form, GenerateLine};
use super::route::{Answer, Dialect, Errors, Route, answers, at, gives};
use crate::{app::shelf::Shelf, described::JsonSchema, http::error::ApiError};

/// Returns the routes of this dialect.
pub(super) fn dialect() -> Dialect {
    let chat =
        gives::<ChatLine>("Answers a conversation").takes::<chat::Fields>().streams_lines::<ChatLine>();
    let generate = gives::<GenerateLine>("Continues a prompt")
        .takes::<generate::Fields>()
        .streams_lines::<GenerateLine>();
    let embed = gives::<embed::Embedded>("Embeds texts").takes::<embed::Fields>();
    let embed_one = gives::<embed::EmbeddedOne>("Embeds one text, unscaled").takes::<embed::Fields>();
    let routes = vec![
        at(&["/api/chat"]).post(chat::route, chat),
        at(&["/api/generate"]).post(generate::route, generate),
        at(&["/api/embed"]).post(embed::embed, embed),
        at(&["/api/embeddings"]).post(embed::embeddings, embed_one),
    ];
    Dialect { name: "ollama", errors: Errors::of::<ErrorLine>(), routes, of_server: of_server() }
}

fn of_server() -> Vec<Route<Arc<Shelf>>> {
    let show = gives::<models::Shown>("Shows a model").takes::<models::ShowFields>();
    let version = gives::<models::Version>("Says which version is spoken");
    let pull = gives::<pull::Step>("Fetches a model of the Hugging Face hub")
        .takes::<pull::Fields>()
        .streams_lines::<pull::Step>();
    let copy = gives::<pull::Done>("Gives a model a second name").takes::<pull::CopyFields>();
    let delete = gives::<pull::Done>("Removes a model that was pulled").takes::<pull::NameFields>();
    let refuses = |summary| answers(Answer::Refusal, summary).takes::<pull::NameFields>();
    vec![
        at(&["/api/tags"]).get(models::tags, gives::<models::Listed>("Lists the models")),
        at(&["/api/ps"]).get(models::running, gives::<models::Listed>("Lists the models in memory")),
        at(&["/api/show"]).post(models::show, show),
        at(&["/api/version"]).get(models::version, version),
        at(&["/api/pull"]).post(pull::pull, pull),
        at(&["/api/copy"]).post(pull::copy, copy),
        at(&["/api/delete"]).delete(pull::delete, delete),
        at(&["/api/push"]).post(refused::push, refuses("Refused: nothing is sent anywhere")),
        at(&["/api/create"]).post(refused::create, refuses("Refused: no model is made here")),
    ]
}

/// Answers a request at this path that asks for nothing but that a model leaves memory, where it is not: the model is
/// not loaded for that.
pub(super) fn unloaded(path: &str, model: &str) -> Response {
    match path {
        "/api/chat" => Json(Form::Chat.of_nothing(model, DoneReason::Unload)).into_response(),
        "/api/embed" => Json(embed::Embedded::of_nothing(model)).into_response(),
        "/api/embeddings" => Json(embed::EmbeddedOne::of_nothing()).into_response(),
        _ => Json(Form::Generate.of_nothing(model, DoneReason::Unload)).into_response(),
    }
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
