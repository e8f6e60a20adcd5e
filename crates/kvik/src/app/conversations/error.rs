//! Why a conversation is not read or not changed.

use axum::http::StatusCode;

use super::record::NAME_BYTES_MAX;
use crate::accounts::ledger::RecordsError;
use crate::http::error::ApiError;

/// What stands in the way.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConversationError {
    /// The tenant has none of that name or id.
    #[error("there is no conversation `{0}`; GET /v1/conversations lists them")]
    NotFound(String),
    /// Somebody else changes it.
    #[error(
        "the conversation `{0}` is being answered or changed by another request; send this one when that has ended"
    )]
    Busy(String),
    /// Another one has the name.
    #[error("another conversation has the name `{0}`; choose another name, or delete that one first")]
    NameTaken(String),
    /// It cannot be a name.
    #[error(
        "a conversation's name has 1 to {NAME_BYTES_MAX} bytes, no control characters, and does not begin with `conv_`"
    )]
    BadName,
    /// A bound is reached.
    #[error("{what}, {have} of them, and {max} is the limit; {remedy}")]
    Limit { what: &'static str, have: u64, max: u64, remedy: &'static str },
    /// Its messages are of many small values.
    #[error(
        "the conversation would hold more values than fit in {mebibytes} MiB of memory; go on in another conversation"
    )]
    Heavy { mebibytes: usize },
    /// Messages are asked for that were never said.
    #[error("`{field}` is {asked}, and the conversation has {messages} messages")]
    BeyondItsEnd { field: &'static str, asked: usize, messages: usize },
    /// A record is gone or cannot be read.
    #[error("a message of the conversation `{0}` cannot be read: the log names its record")]
    Damaged(String),
    #[error(transparent)]
    Records(#[from] RecordsError),
}

impl From<ConversationError> for ApiError {
    fn from(error: ConversationError) -> ApiError {
        let message = error.to_string();
        let (status, code) = match error {
            ConversationError::NotFound(_) => (StatusCode::NOT_FOUND, Some("conversation_not_found")),
            ConversationError::Busy(_) => (StatusCode::CONFLICT, Some("conversation_busy")),
            ConversationError::NameTaken(_) => (StatusCode::CONFLICT, Some("conversation_exists")),
            ConversationError::Limit { .. } | ConversationError::Heavy { .. } => {
                (StatusCode::BAD_REQUEST, Some("conversation_limit"))
            }
            ConversationError::BadName => (StatusCode::BAD_REQUEST, None),
            ConversationError::BeyondItsEnd { field, .. } => return ApiError::field(field, message),
            ConversationError::Damaged(_) => return ApiError::internal(message),
            ConversationError::Records(error) => return error.into(),
        };
        ApiError::new(status, code, message)
    }
}
