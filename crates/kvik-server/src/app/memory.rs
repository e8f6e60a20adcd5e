//! Conversations that outgrow the context: the server's types for them, and their errors as clients see them.

use kvik_memory::memory::{self, MemoryError, SummaryKind};
use serde::Serialize;

use super::state::App;
use crate::{described::JsonSchema, http::error::ApiError};

/// Seconds after which to retry when memory was exhausted.
const RETRY_AFTER_S: u64 = 5;

pub(crate) type CompactJob = memory::CompactJob<ApiError>;
pub(crate) type History<'a> = memory::History<'a, App>;
pub(crate) type RegisteredWork = memory::RegisteredWork<App>;
pub(crate) type RememberedTurn = memory::RememberedTurn<App>;

/// Where the text of a summary is from: the model summarised, the model listed facts, or sentences of the messages were
/// extracted.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum SummarySource {
    Summary,
    Facts,
    Extracted,
}

impl From<SummaryKind> for SummarySource {
    fn from(kind: SummaryKind) -> SummarySource {
        match kind {
            SummaryKind::Summary => SummarySource::Summary,
            SummaryKind::Facts => SummarySource::Facts,
            SummaryKind::Extracted => SummarySource::Extracted,
        }
    }
}

impl From<MemoryError> for ApiError {
    fn from(error: MemoryError) -> ApiError {
        match error {
            MemoryError::Settings(error) => {
                let message = format!("`kvik.memory` cannot be on with this server: {error}");
                ApiError::field("kvik.memory", message)
            }
            MemoryError::NothingSaid => {
                ApiError::field("input", "`input` says nothing that could be compacted")
            }
            MemoryError::Busy => {
                let message =
                    "as many long conversations are summarised as there is memory for; send it again";
                ApiError::busy(message, RETRY_AFTER_S)
            }
            error => ApiError::internal(error.to_string()),
        }
    }
}
