//! Errors of remembering a conversation.

use crate::context::MemorySettingsError;

/// An error of remembering a conversation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The bounds do not fit the context.
    #[error("conversations cannot be remembered: {0}")]
    Settings(#[from] MemorySettingsError),
    /// There is nothing to summarise.
    #[error("nothing was said that could be compacted")]
    NothingSaid,
    /// Histories of other conversations occupy the memory for work after answers.
    #[error("as many long conversations are summarised as there is memory for; ask again later")]
    Busy,
    /// The model gave no summary.
    #[error("the conversation was not compacted: {0}")]
    NoSummary(String),
}
