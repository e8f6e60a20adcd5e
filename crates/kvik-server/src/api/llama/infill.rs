//! `POST /infill`: fills in the middle of a text between a prefix and a suffix.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use serde::Deserialize;

use super::{
    answer::LlamaAnswer,
    completion::{Asked, CompletionFields, LlamaServer},
};
use crate::{
    api::request::{
        fill::{Chunk, Fill, Marks},
        generation::GenerationFields,
        parts::{FromBody, Part},
    },
    app::{body::JsonBody, keys::Caller, requests::Prepared, state::App},
    described::JsonSchema,
    http::{error::ApiError, json::Body},
};

type Result<T> = std::result::Result<T, ApiError>;

/// All fields of a body.
pub(super) type Fields = (InfillFields, GenerationFields<LlamaServer>, CompletionFields);

/// The text whose middle is wanted.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct InfillFields {
    /// What stands before the middle.
    input_prefix: String,
    /// What stands after the middle.
    input_suffix: String,
    /// Parts of other files, those that matter most last.
    #[serde(default)]
    input_extra: Vec<Chunk>,
    /// How the middle begins.
    #[serde(default)]
    prompt: String,
}

impl Part for InfillFields {}

/// Fills in the middle of a text.
pub(super) async fn route(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response> {
    app.complete(body, read).await
}

fn read(app: &App, caller: &Caller, body: &Body) -> Result<Prepared<LlamaAnswer>> {
    let marks = Marks::of(app)?;
    let (text, generation, fields) = Fields::from_body(body)?;
    let asked = Asked::read(app, generation, fields)?;
    let fill = Fill {
        before: &text.input_prefix,
        begin: &text.prompt,
        after: &text.input_suffix,
        chunks: &text.input_extra,
    };
    let prompt = marks.prompt(app, &fill, asked.max_tokens, body)?;
    asked.of(app, caller, &[prompt], body)
}
