//! Conversations stored by the server: a client names one and sends only the new messages.

use std::sync::Arc;

use axum::http::StatusCode;
use kvik_memory::{
    conversations::{ConversationError, ConversationTurn, Conversations},
    deletions::{Deletions, Owner},
    records::Records,
};
use serde::Serialize;
use serde_json::Value;
use tokio::task::{JoinError, JoinHandle};

use super::{config::AppConfig, prompt_log::PromptLog};
use crate::{
    described::JsonSchema,
    http::{
        error::ApiError,
        json::{VALUES_BYTES_MAX, fit_in_a_body},
        readers::give_way,
    },
};

/// Seconds after which to retry when another node holds the conversation.
const RETRY_AFTER_S: u64 = 2;

/// A write that is in progress.
pub(crate) type Writing = JoinHandle<Result<(), ApiError>>;

/// Which conversation of the server an answer belongs to, and how long it is with it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct ConversationReport {
    id: String,
    name: Option<String>,
    messages: usize,
}

impl ConversationReport {
    /// The object `kvik.conversation` of a turn.
    pub(crate) fn of(turn: &ConversationTurn) -> ConversationReport {
        ConversationReport {
            id: turn.key().id.clone(),
            name: turn.head().name.clone(),
            messages: turn.messages(),
        }
    }
}

/// Opens the conversations of a server and of the nodes that share them with it. What the log notes of one that becomes
/// another is noted of that one from then on.
pub(super) fn open(config: &AppConfig, deletions: Arc<Deletions>, log: Arc<PromptLog>) -> Arc<Conversations> {
    let shared = config.shared_records.clone();
    // A thread that waits for other nodes gives way to other readers, as one that waits for a file does.
    let in_memory = shared.is_some().then(|| Records::in_memory().giving_way(give_way));
    let forked = move |of: &Owner, fork: &Owner| {
        if let Err(error) = log.hand_over(of, fork) {
            tracing::warn!("the deletion of {} may leave what was computed for it: {error}", fork.id);
        }
    };
    let records = config.conversations.as_ref().or(in_memory.as_ref());
    Conversations::open_forking(records, shared, deletions, Box::new(forked))
}

/// Converts the outcome of a write.
pub(crate) fn written(ended: Result<Result<(), ApiError>, JoinError>) -> Result<(), ApiError> {
    ended.unwrap_or_else(|panic| Err(ApiError::panicked("writing the conversation", &panic)))
}

/// Refuses a conversation whose values would not fit in a body: each turn builds all of them, and an exported
/// conversation can be sent again.
pub(crate) fn check_values(messages: &[Value]) -> Result<(), ApiError> {
    if fit_in_a_body(messages) {
        return Ok(());
    }
    let mebibytes = VALUES_BYTES_MAX >> 20;
    let message = format!(
        "the conversation would hold more values than fit in {mebibytes} MiB of memory; go on in another conversation"
    );
    Err(limit(message))
}

fn limit(message: String) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, Some("conversation_limit"), message)
}

impl From<ConversationError> for ApiError {
    fn from(error: ConversationError) -> ApiError {
        let message = error.to_string();
        let not_found = |message: &str| {
            let message = format!("{message}; GET /v1/conversations lists them");
            ApiError::new(StatusCode::NOT_FOUND, Some("conversation_not_found"), message)
        };
        let conflict = |code, message| ApiError::new(StatusCode::CONFLICT, Some(code), message);
        match error {
            ConversationError::NotFound(_) => not_found(&message),
            ConversationError::NothingBehind(_) => not_found(&message).at("after"),
            ConversationError::Busy(_) | ConversationError::Forked { .. } => {
                conflict("conversation_busy", message)
            }
            ConversationError::Elsewhere(_) => {
                ApiError::unavailable("conversation_elsewhere", message, RETRY_AFTER_S)
            }
            ConversationError::NameTaken(_) => conflict("conversation_exists", message).for_good(),
            ConversationError::Full { .. } => {
                limit(format!("{message}, which may begin as this one does (`from`, `upto`)"))
            }
            ConversationError::AllFull { .. } => limit(format!("{message}: DELETE /v1/conversations/{{id}}")),
            ConversationError::BadName => ApiError::bad_request(message),
            ConversationError::BeyondItsEnd { field, .. } => ApiError::field(field, message),
            ConversationError::Records(error) => error.into(),
            _ => ApiError::internal(message),
        }
    }
}
