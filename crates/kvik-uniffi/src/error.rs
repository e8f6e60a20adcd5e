//! Errors of calls, by what a program can do about them.

use kvik_library::{ConstraintError, ConversationError, Error, RequestError, StartError};

/// Error of a call. The message says what is wrong and what helps.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, uniffi::Error)]
#[uniffi(flat_error)]
#[non_exhaustive]
pub enum KvikError {
    /// An argument has a value that the call does not accept.
    #[error("{0}")]
    InvalidArgument(String),
    /// The model cannot be read or used.
    #[error("{0}")]
    Model(String),
    /// The model has no chat template for a chat.
    #[error("{0}")]
    NoTemplate(String),
    /// The memory or the sizes cannot be provided.
    #[error("{0}")]
    Memory(String),
    /// The directory on disk cannot be used.
    #[error("{0}")]
    Disk(String),
    /// The prompt does not fit the context.
    #[error("{0}")]
    PromptTooLong(String),
    /// The prompt does not fit the budget of keys and values, or not in addition to pinned prompts.
    #[error("{0}")]
    OverBudget(String),
    /// Pinned prompts would exceed their limit.
    #[error("{0}")]
    TooManyKept(String),
    /// The conversation does not exist, or cannot be read or changed in this way.
    #[error("{0}")]
    Conversation(String),
    /// Too many requests wait, or another call is changing the conversation.
    #[error("{0}")]
    Busy(String),
    /// The engine refused the request for another reason, or the request failed.
    #[error("{0}")]
    Request(String),
    /// The model is closed.
    #[error("the model is closed")]
    Closed,
    /// An internal failure. Other calls are not affected.
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
            Error::BudgetTooSmall { .. }
            | Error::BudgetTooLarge { .. }
            | Error::ContextTooLarge { .. }
            | Error::NoMemory { .. } => KvikError::Memory,
            Error::Start(StartError::Thread(_)) => KvikError::Internal,
            Error::Start(_) | Error::Threads(_) => KvikError::InvalidArgument,
            Error::Disk(_) | Error::KeptPrompts { .. } | Error::Records(_) | Error::NotForgotten(_) => {
                KvikError::Disk
            }
            Error::PromptTooLong { .. } | Error::TextTooLong { .. } => KvikError::PromptTooLong,
            Error::OverBudget { .. } => KvikError::OverBudget,
            Error::NoRoomToKeep { .. } | Error::TooManyKept { .. } | Error::KeptTooLong { .. } => {
                KvikError::TooManyKept
            }
            Error::BadTools(_) | Error::Tools(_) | Error::TwoForms => KvikError::InvalidArgument,
            Error::Conversation(ConversationError::Busy(_)) => KvikError::Busy,
            Error::Conversation(_) | Error::Memory(_) | Error::Correction(_) => KvikError::Conversation,
            Error::Request(RequestError::Stopping) => return KvikError::Closed,
            Error::Request(
                RequestError::QueueFull { .. } | RequestError::Constraint(ConstraintError::Busy { .. }),
            ) => KvikError::Busy,
            Error::Request(
                RequestError::Internal(_) | RequestError::Constraint(ConstraintError::NoThread(_)),
            ) => KvikError::Internal,
            Error::Request(_) => KvikError::Request,
            _ => KvikError::Internal,
        };
        kind(error.to_string())
    }
}

/// Converts a count that other languages pass as a signed number.
pub(crate) fn count(name: &str, number: i64) -> Result<usize, KvikError> {
    usize::try_from(number).map_err(|_| KvikError::argument(name, "is negative"))
}

/// Converts a count for other languages. None of the engine's counts reaches the limit.
pub(crate) fn signed(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use kvik_library::PoolError;

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
            RequestError::Constraint(ConstraintError::Busy { retry_after_s: 2 }).into(),
            KvikError::Busy("too many constraints are in use at the same time; try again in 2 s".into()),
        );
        check(
            RequestError::Internal("it broke".into()).into(),
            KvikError::Internal("internal error: it broke".into()),
        );
        check(RequestError::EmptyPrompt.into(), KvikError::Request(RequestError::EmptyPrompt.to_string()));
        check(
            Error::TooManyKept { prompts_max: 256 },
            KvikError::TooManyKept("256 prompts are kept, which is the limit; forget one first".into()),
        );
        check(
            Error::Threads(PoolError::TooMany { threads: 5000 }),
            KvikError::InvalidArgument(
                "a model is computed by at most 4096 threads, and `threads` is 5000; lower it".into(),
            ),
        );
        assert_eq!(count("threads", -1), Err(KvikError::InvalidArgument("`threads` is negative".into())));
        assert_eq!((count("threads", 2), signed(u64::MAX)), (Ok(2), i64::MAX));
    }
}
