//! `/v1/conversations/{id}/memory`: the summary of a conversation beyond the context, and its correction.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, State},
    http::StatusCode,
};
use kvik_memory::{
    conversations::ConversationKey,
    memory::{CorrectionError, Remembered},
};
use serde::{Deserialize, Serialize};

use super::conversations::find;
use crate::{
    api::request::parts::{FromBody, Part},
    app::{body::JsonBody, keys::Caller, memory::SummarySource, state::App},
    clock::unix_seconds,
    described::JsonSchema,
    http::{
        answer::words,
        body_memory::SMALL_BYTES,
        error::ApiError,
        readers::{Presence, Reader},
    },
};

type Result<T> = std::result::Result<T, ApiError>;

words! {
    MemoryWord = "conversation.memory";
}

/// What is remembered of a conversation.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ConversationMemory {
    object: MemoryWord,
    id: String,
    /// Null where there is none.
    summary: Option<ShownSummary>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct ShownSummary {
    text: String,
    covers: usize,
    /// The first message that it covers, and the one behind the last.
    messages: [usize; 2],
    age_s: u64,
    updates: u64,
    kind: SummarySource,
    corrected: bool,
    /// Why no newer one was made.
    failed: Option<String>,
}

/// What a summary is to say.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct CorrectFields {
    /// Instead of what it says.
    summary: String,
}

impl Part for CorrectFields {}

/// `GET /v1/conversations/{id}/memory`
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<ConversationMemory>> {
    let (key, head) = find(&app.server, &caller, &id).await?;
    let reader = Reader { tenant: caller.tenant.id, large: head.bytes > SMALL_BYTES };
    let reading = app.clone();
    let read = move |client: Presence| {
        client.check()?;
        let (key, _, messages) = reading.server.conversations.read(&key.tenant, &key.id)?;
        Ok(Json(shown(&key, reading.memory.remembered(&key.tenant, &messages))))
    };
    app.server.readers.in_turn_behind_models(reader, read).await
}

/// `POST /v1/conversations/{id}/memory`
pub(crate) async fn correct(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    body: JsonBody,
) -> Result<Json<ConversationMemory>> {
    let tenant = body.caller.tenant.name.clone();
    app.read(body, move |app, body| {
        let CorrectFields { summary } = CorrectFields::from_body(body)?;
        // Excludes turns in progress, which would base the next summary on the old one.
        let held = app.server.conversations.hold(&tenant, &id)?;
        let corrected = app.memory.correct(&tenant, &held.messages()?, &summary);
        Ok(Json(shown(held.key(), Some(corrected.map_err(refused)?))))
    })
    .await
}

fn shown(key: &ConversationKey, remembered: Option<Remembered>) -> ConversationMemory {
    let summary = remembered.map(|Remembered { summary, messages }| ShownSummary {
        text: summary.text,
        covers: summary.covers,
        messages: [messages.start, messages.end],
        age_s: unix_seconds().saturating_sub(summary.made),
        updates: summary.updates,
        kind: summary.kind.into(),
        corrected: summary.corrected,
        failed: summary.failed,
    });
    ConversationMemory { object: MemoryWord, id: key.id.clone(), summary }
}

fn refused(error: CorrectionError) -> ApiError {
    let message = error.to_string();
    match error {
        CorrectionError::NoSummary => {
            ApiError::new(StatusCode::NOT_FOUND, Some("summary_not_found"), message)
        }
        CorrectionError::InTheMaking => {
            ApiError::new(StatusCode::CONFLICT, Some("conversation_busy"), message)
        }
        CorrectionError::Empty => {
            ApiError::field("summary", "`summary` is empty; say what is to be remembered")
        }
        CorrectionError::TooLong { tokens, max } => {
            let message = format!(
                "`summary` has {tokens} tokens, and a summary of this server {max} at most (kvik serve --memory-summary); shorten it"
            );
            ApiError::field("summary", message)
        }
    }
}
