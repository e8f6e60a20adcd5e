//! How this server remembers conversations: whom it asks, who counts, and what clients are told.

use kvik_engine::text::{template::ChatTemplate, tokenizer::Tokenizer};
use kvik_memory::memory::{self, MemoryError, MemoryModel, Observer, ReadPart, SummaryOutcome};

use super::{metrics::Metrics, state::App};
use crate::{http::error::ApiError, serving::Serving};

/// When to try again where there was no memory.
const RETRY_AFTER_S: u64 = 5;

pub(crate) type CompactJob = memory::CompactJob<ApiError>;
pub(crate) type History<'a> = memory::History<'a, App>;
pub(crate) type RememberedTurn = memory::RememberedTurn<App>;

impl MemoryModel for Serving {
    fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    fn context(&self) -> usize {
        self.model.context
    }
}

impl Observer for Metrics {
    fn turn(&self, read: ReadPart, quotes: usize) {
        self.memory.turn(read, quotes);
    }

    fn summary(&self, outcome: SummaryOutcome) {
        self.memory.summary(outcome);
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
