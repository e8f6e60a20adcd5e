//! `POST /v1/messages`

use std::sync::Arc;

use axum::{extract::State, response::Response};
use kvik_memory::deletions::Owner;

use super::{
    answer::{MessageAnswer, Spoken},
    body::{Fields, turn},
};
use crate::{
    api::request::{hints::HOUR, parts::FromBody},
    app::{body::JsonBody, keys::Caller, requests::Prepared, state::App},
    http::{error::ApiError, json::Body},
};

/// Answers a conversation.
pub(super) async fn route(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response, ApiError> {
    app.complete(body, read).await
}

fn read(app: &App, caller: &Caller, body: &Body) -> Result<Prepared<MessageAnswer>, ApiError> {
    let fields = Fields::from_body(body)?;
    let (turn, wanted, keeps) = turn(app, caller, fields, body)?;
    let owner = keeps.as_ref().map(|keeps| Owner::new(&keeps.tenant, &keeps.id));
    let caller = &owner.map_or_else(|| caller.clone(), |owner| caller.on_behalf_of(owner));
    let spoken = Spoken {
        id: turn.id.clone(),
        model: app.serving.model.name.clone(),
        stop: turn.options.stop.clone(),
        leaves: turn.options.reuse,
        is_kept_long: turn.options.lifetime.raised.is_some_and(|raised| raised.lasts >= HOUR),
        context: app.serving.model.context,
        scale: app.token_scale(body),
        wanted,
    };
    let mut prepared = turn.prepare(app, caller, body, |worded| MessageAnswer::new(spoken, worded))?;
    prepared.origin.response = keeps;
    Ok(prepared)
}
