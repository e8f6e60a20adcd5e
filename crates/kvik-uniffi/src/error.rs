//! What a call fails with, by what a program can do about it.

use kvik_library::{ConversationError, Error, RequestError};

/// Why a call failed. The message says what was wrong and what helps.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, uniffi::Error)]
#[uniffi(flat_error)]
#[non_exhaustive]
pub enum KvikError {
    /// An argument is none that the call takes.
    #[error("{0}")]
    InvalidArgument(String),
    /// The model cannot be read or used.
    #[error("{0}")]
    Model(String),
    /// A chat was asked for, and the model has no chat template.
    #[error("{0}")]
    NoTemplate(String),
    /// The memory or the sizes asked for cannot be had.
    #[error("{0}")]
    Memory(String),
    /// The directory on disk cannot be used.
    #[error("{0}")]
    Disk(String),
    /// The prompt does not fit the context.
    #[error("{0}")]
    PromptTooLong(String),
    /// The prompt does not fit the budget of keys and values, or not beside kept prompts.
    #[error("{0}")]
    OverBudget(String),
    /// Kept prompts would take more than they may, or there are as many as there may be.
    #[error("{0}")]
    TooManyKept(String),
    /// There is no such conversation, or it cannot be read or changed so.
    #[error("{0}")]
    Conversation(String),
    /// As many requests wait as may, or somebody else changes the conversation.
    #[error("{0}")]
    Busy(String),
    /// The engine refused the request for another reason, or the request failed.
    #[error("{0}")]
    Request(String),
    /// The model is closed.
    #[error("the model is closed")]
    Closed,
    /// Something failed inside. Other calls go on.
    #[error("{0}")]
    Internal(String),
}

impl KvikError {
    pub(crate) fn argument(name: &str, wrong: &str) -> KvikError {
        KvikError::InvalidArgument(format!("`{name}` {wrong}"))
    }
}

impl From<Error> for KvikError {
    fn from(error: Error) -> KvikError {
        let kind = match &error {
            Error::Source(_) | Error::Load(_) | Error::Weights(_) | Error::Template(_) | Error::Isa(_) => {
                KvikError::Model
            }
            Error::NoTemplate => KvikError::NoTemplate,
            Error::BudgetTooSmall { .. } | Error::ContextTooLarge { .. } | Error::NoMemory { .. } => {
                KvikError::Memory
            }
            Error::Disk(_) | Error::KeptPrompts { .. } | Error::Records(_) => KvikError::Disk,
            Error::PromptTooLong { .. } => KvikError::PromptTooLong,
            Error::OverBudget { .. } => KvikError::OverBudget,
            Error::NoRoomToKeep { .. } | Error::TooManyKept { .. } => KvikError::TooManyKept,
            Error::BadTools(_) | Error::Tools(_) | Error::TwoForms => KvikError::InvalidArgument,
            Error::Conversation(ConversationError::Busy(_)) => KvikError::Busy,
            Error::Conversation(_) | Error::Memory(_) | Error::Correction(_) | Error::NotForgotten(_) => {
                KvikError::Conversation
            }
            Error::Request(RequestError::Stopping) => return KvikError::Closed,
            Error::Request(RequestError::QueueFull { .. }) => KvikError::Busy,
            Error::Request(_) => KvikError::Request,
            _ => KvikError::Internal,
        };
        kind(error.to_string())
    }
}

/// A count that other languages give as a signed number.
pub(crate) fn count(name: &str, number: i64) -> Result<usize, KvikError> {
    usize::try_from(number).map_err(|_| KvikError::argument(name, "is negative"))
}

/// A count as other languages take it. None of the engine's counts reaches the limit.
pub(crate) fn signed(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_their_kind_and_their_words() {
        let check = |error: Error, expect: KvikError| assert_eq!(KvikError::from(error), expect);
        check(Error::Request(RequestError::Stopping), KvikError::Closed);
        check(Error::Panic("it broke".into()), KvikError::Internal("internal error: it broke".into()));
        check(
            RequestError::QueueFull { waiting: 256, retry_after_s: 2 }.into(),
            KvikError::Busy("256 requests are waiting, which is the limit; try again in 2 s".into()),
        );
        check(
            Error::TooManyKept { prompts_max: 256 },
            KvikError::TooManyKept("256 prompts are kept, which is the limit; forget one first".into()),
        );
        assert_eq!(count("threads", -1), Err(KvikError::InvalidArgument("`threads` is negative".into())));
        assert_eq!((count("threads", 2), signed(u64::MAX)), (Ok(2), i64::MAX));
    }
}
