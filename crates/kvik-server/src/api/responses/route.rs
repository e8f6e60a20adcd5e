//! `POST /v1/responses`

use std::sync::Arc;

use axum::{extract::State, response::Response};
use kvik_memory::deletions::Owner;

use super::{
    answer::ResponseAnswer,
    body::{Fields, turn},
    output::Output,
};
use crate::{
    api::request::parts::FromBody,
    app::{body::JsonBody, keys::Caller, requests::Prepared, state::App},
    http::{error::ApiError, json::Body},
};

/// Answers.
pub(super) async fn route(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response, ApiError> {
    app.complete(body, read).await
}

fn read(app: &App, caller: &Caller, body: &Body) -> Result<Prepared<ResponseAnswer>, ApiError> {
    let fields = Fields::from_body(body)?;
    let (turn, wanted) = turn(app, caller, fields, body)?;
    let keeps = wanted.keeps;
    let owner = keeps.as_ref().map(|keeps| Owner::new(&keeps.tenant, &keeps.id));
    let caller = &owner.map_or_else(|| caller.clone(), |owner| caller.on_behalf_of(owner));
    let output = Output::new(app, &turn.id, (&wanted.echo, &wanted.sampling), keeps.is_some());
    let mut prepared = turn.prepare(app, caller, body, |worded| {
        ResponseAnswer::new(output, worded, wanted.called, wanted.sealed_thoughts)
    })?;
    prepared.origin.response = keeps;
    Ok(prepared)
}
