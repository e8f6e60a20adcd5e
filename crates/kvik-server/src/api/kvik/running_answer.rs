//! `/v1/conversations/{id}/answer`: the answer that runs in a stored conversation, for clients that lost its stream.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, Query as Parameters, State},
    http::StatusCode,
    response::Response,
};
use kvik_memory::conversations::ConversationKey;
use serde::{Deserialize, Serialize};

use super::conversations::find;
use crate::{
    app::{keys::Caller, server::Server, shelf::Shelf, wire::Wire},
    described::JsonSchema,
    http::{answer::words, error::ApiError},
};

type Result<T> = std::result::Result<T, ApiError>;

words! {
    RunningAnswerWord = "conversation.answer";
}

/// The first event that a client wants.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct FirstEvent {
    from: usize,
}

/// The parameter of that, as the OpenAPI document describes it.
pub(super) const PARAMETERS: [(&str, &str); 1] =
    [("from", "The index of the first event, counted from 0; all events where nothing is said")];

/// What became of an answer that was to be stopped: nothing is written of one that was.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct StoppedAnswer {
    /// The conversation.
    id: String,
    object: RunningAnswerWord,
    /// Whether it was stopped; false if it had ended, or was being written, already.
    stopped: bool,
}

/// `GET /v1/conversations/{id}/answer`: the events of the answer from an index on, and those to come.
pub(crate) async fn follow(
    State(shelf): State<Arc<Shelf>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Parameters(FirstEvent { from }): Parameters<FirstEvent>,
) -> Result<Response> {
    let key = answered(&shelf.server, &caller, &id).await?;
    let answer = shelf.server.running_answers.get(&key).ok_or_else(|| none_runs(&id))?;
    Ok(Wire::Data { last: None }.respond(answer.follow(from)?))
}

/// `DELETE /v1/conversations/{id}/answer`: stops the answer; then the conversation is free.
pub(crate) async fn stop(
    State(shelf): State<Arc<Shelf>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<StoppedAnswer>> {
    let key = answered(&shelf.server, &caller, &id).await?;
    let stopped = shelf.server.running_answers.stop(&key).await;
    Ok(Json(StoppedAnswer { id: key.id, object: RunningAnswerWord, stopped }))
}

/// Finds the conversation of a caller whose answer is meant: one that begins with this answer, or one that exists.
async fn answered(server: &Server, caller: &Caller, id: &str) -> Result<ConversationKey> {
    match server.conversations.held(&caller.tenant.name, id) {
        Some(key) => Ok(key),
        None => find(server, caller, id).await.map(|(key, _)| key),
    }
}

fn none_runs(id: &str) -> ApiError {
    let message = format!(
        "no answer that can be followed runs in the conversation `{id}`: GET /v1/conversations/{{id}} has what was answered"
    );
    ApiError::new(StatusCode::NOT_FOUND, Some("no_answer_runs"), message)
}
