//! `POST /v1/responses`

use std::sync::{Arc, OnceLock};

use axum::{extract::State, response::Response};
use kvik_memory::deletions::Owner;

use super::{
    answer::{ResponseAnswer, failed_stream},
    body::{Fields, turn},
    output::Output,
};
use crate::{
    api::request::parts::FromBody,
    app::{body::JsonBody, keys::Caller, requests::Prepared, state::App},
    http::{error::ApiError, json::Body},
};

/// Answers. That a prompt is too long is said in the stream, if one is wanted: Codex compacts the conversation then, and
/// takes any status 400 for a mistake of its own.
pub(super) async fn route(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response, ApiError> {
    let streamed = Arc::new(OnceLock::new());
    let begun = streamed.clone();
    let answered = app.complete(body, move |app, caller, body| read(app, caller, body, &begun)).await;
    match (answered, streamed.get()) {
        (Err(error), Some(output)) if error.is_too_long() => Ok(failed_stream(output, &error)),
        (answered, _) => answered,
    }
}

/// Reads a request; notes the answer as it begins in `streamed`, if it is sent as a stream.
fn read(
    app: &App,
    caller: &Caller,
    body: &Body,
    streamed: &OnceLock<Output>,
) -> Result<Prepared<ResponseAnswer>, ApiError> {
    let fields = Fields::from_body(body)?;
    let is_streamed = fields.1.stream;
    let (turn, wanted) = turn(app, caller, fields, body)?;
    let keeps = wanted.keeps;
    let owner = keeps.as_ref().map(|keeps| Owner::new(&keeps.tenant, &keeps.id));
    let caller = &owner.map_or_else(|| caller.clone(), |owner| caller.on_behalf_of(owner));
    let output = Output::new(app, &turn.id, (&wanted.echo, &wanted.sampling), keeps.is_some());
    if is_streamed {
        streamed.get_or_init(|| output.clone());
    }
    let mut prepared = turn.prepare(app, caller, body, |worded| {
        ResponseAnswer::new(output, worded, wanted.called, wanted.sealed_thoughts)
    })?;
    prepared.origin.response = keeps;
    Ok(prepared)
}
