//! Errors of calls, and the conversion of panics to errors.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use kvik_cache::PinLimit;
use kvik_engine::api::RequestError;
use kvik_engine::engine::StartError;
use kvik_engine::store::StoreError;
use kvik_kernels::{PoolError, UnknownIsa};
use kvik_memory::conversations::ConversationError;
use kvik_memory::memory::{CorrectionError, MemoryError, NotDeleted};
use kvik_memory::records::RecordsError;
use kvik_model::ModelError;
use kvik_model::load::LoadError;
use kvik_session::{BudgetError, ChatError, OpenError, RunnerError, SessionError};
use kvik_text::template::TemplateError;
use kvik_text::tools::NotOffered;

/// Error of a call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model's file cannot be mapped.
    #[error("the model cannot be read: {0}")]
    Source(#[source] io::Error),
    /// The model's files cannot be used.
    #[error("the model cannot be loaded: {0}")]
    Load(#[from] LoadError),
    /// The model's weights cannot be used.
    #[error("the model cannot be loaded: {0}")]
    Weights(#[from] ModelError),
    /// The model's chat template cannot be used, or refuses the messages.
    #[error("{0}")]
    Template(TemplateError),
    /// The model has no chat template for a chat.
    #[error("this model has no chat template; ask it with a text instead of messages")]
    NoTemplate,
    /// The budget is smaller than a block.
    #[error(
        "{kv_bytes} bytes of keys and values hold no block of this model, which takes {block_bytes}; raise `kv_bytes`"
    )]
    BudgetTooSmall {
        /// The budget.
        kv_bytes: u64,
        /// Bytes of a block.
        block_bytes: usize,
    },
    /// The budget is larger than the memory that this process can have.
    #[error(
        "{kv_bytes} bytes of keys and values are more than the {most_bytes} that this process can have; lower `kv_bytes`"
    )]
    BudgetTooLarge {
        /// The budget.
        kv_bytes: u64,
        /// Bytes of the machine, or of the container or service that the process is in.
        most_bytes: u64,
    },
    /// The context does not fit the budget.
    #[error(
        "a context of {context_tokens} tokens does not fit the budget of keys and values, which holds {fits_tokens}; raise `kv_bytes` or lower `context_tokens`"
    )]
    ContextTooLarge {
        /// Tokens asked for.
        context_tokens: usize,
        /// Tokens that fit.
        fits_tokens: usize,
    },
    /// The system refuses the memory of the budget.
    #[error("there is no memory for {kv_bytes} bytes of keys and values: {source}; lower `kv_bytes`")]
    NoMemory {
        /// The budget.
        kv_bytes: u64,
        /// Error of the system.
        source: io::Error,
    },
    /// The cache on disk cannot be used.
    #[error("{0}")]
    Disk(#[from] StoreError),
    /// The list of pinned prompts cannot be read or written.
    #[error("{}: {source}; choose a directory that can be written", path.display())]
    KeptPrompts {
        /// Path of the list.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The limit on pinned prompts is reached.
    #[error("{prompts_max} prompts are kept, which is the limit; forget one first")]
    TooManyKept {
        /// The limit.
        prompts_max: usize,
    },
    /// The list of pinned prompts would be too long to be read again.
    #[error(
        "the list of kept prompts would have {bytes} bytes, and {bytes_max} is the limit; forget one first"
    )]
    KeptTooLong {
        /// Bytes that the list would have.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// The tools are not in the expected form.
    #[error("the tools cannot be read: {0}")]
    BadTools(String),
    /// The tool choice refers to tools that are not offered.
    #[error("`tool_choice` {0}")]
    Tools(#[from] NotOffered),
    /// The tool choice forces a call, and a constraint asks for another form.
    #[error("`tool_choice` asks for a call, and `constraint` for another form; ask for one of them")]
    TwoForms,
    /// A conversation cannot be read or changed.
    #[error("{0}")]
    Conversation(#[from] ConversationError),
    /// The records of conversations cannot be used.
    #[error("{0}")]
    Records(#[from] RecordsError),
    /// A conversation cannot be remembered.
    #[error("{0}")]
    Memory(#[from] MemoryError),
    /// A summary of a conversation cannot be corrected.
    #[error("{0}")]
    Correction(#[from] CorrectionError),
    /// Deleted summaries of a conversation may still be on the disk.
    #[error("{0}")]
    NotForgotten(#[from] NotDeleted),
    /// The environment names an instruction set that does not exist.
    #[error(transparent)]
    Isa(#[from] UnknownIsa),
    /// The compute threads cannot be started.
    #[error(transparent)]
    Threads(#[from] PoolError),
    /// The engine cannot be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The prompt does not fit the context.
    #[error(
        "the prompt has {prompt_tokens} tokens and the context holds {context_tokens}; shorten it, or open the model with more `context_tokens`"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens of the context.
        context_tokens: usize,
    },
    /// The text is so long that it cannot fit the context; its tokens were not counted.
    #[error(
        "the prompt has at least {tokens_min} tokens and the context holds {context_tokens}; shorten it, or open the model with more `context_tokens`"
    )]
    TextTooLong {
        /// Tokens that the text has at least.
        tokens_min: usize,
        /// Tokens of the context.
        context_tokens: usize,
    },
    /// The prompt does not fit the budget, or not in addition to pinned prompts.
    #[error(
        "the prompt needs {needed_blocks} blocks of keys and values, and {left_blocks} are not taken by kept prompts; shorten it, forget a kept prompt, or raise `kv_bytes`"
    )]
    OverBudget {
        /// Blocks that the prompt needs.
        needed_blocks: usize,
        /// Blocks that are available to it.
        left_blocks: usize,
    },
    /// Pinned prompts would exceed their limit.
    #[error(
        "keeping this prompt takes {needed_blocks} more blocks of keys and values, and {kept_blocks} of the {limit_blocks} for kept prompts are taken; forget one, or raise `kv_bytes`"
    )]
    NoRoomToKeep {
        /// Blocks that the prompt needs.
        needed_blocks: usize,
        /// Blocks of pinned prompts.
        kept_blocks: usize,
        /// Limit on the blocks of pinned prompts.
        limit_blocks: usize,
    },
    /// The engine refused the request for another reason, or the request failed.
    #[error("{0}")]
    Request(RequestError),
    /// The call panicked. Other calls are not affected.
    #[error("internal error: {0}")]
    Panic(String),
}

/// The engine's messages refer to flags of the binary; these refer to options.
impl From<RequestError> for Error {
    fn from(error: RequestError) -> Error {
        match error {
            RequestError::PromptTooLong { prompt_tokens, context_tokens } => {
                Error::PromptTooLong { prompt_tokens, context_tokens }
            }
            RequestError::OverBudget { needed_blocks, budget_blocks } => {
                Error::OverBudget { needed_blocks, left_blocks: budget_blocks }
            }
            RequestError::Pinned { needed_blocks, pinned_blocks, budget_blocks, .. } => {
                Error::OverBudget { needed_blocks, left_blocks: budget_blocks - pinned_blocks }
            }
            RequestError::PinLimit(PinLimit { needed, pinned, limit, .. }) => {
                Error::NoRoomToKeep { needed_blocks: needed, kept_blocks: pinned, limit_blocks: limit }
            }
            error => Error::Request(error),
        }
    }
}

impl From<ChatError> for Error {
    fn from(error: ChatError) -> Error {
        match error {
            ChatError::NoTemplate => Error::NoTemplate,
            ChatError::Template(error) => error.into(),
            ChatError::TooLong { tokens_min, context_tokens } => {
                Error::TextTooLong { tokens_min, context_tokens }
            }
            // No message of the library is continued.
            ChatError::NotContinued(error) => Error::Request(RequestError::Internal(error.to_string())),
        }
    }
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Error {
        match error {
            OpenError::Template(error) => error.into(),
            OpenError::Weights(error) => error.into(),
        }
    }
}

impl From<BudgetError> for Error {
    fn from(error: BudgetError) -> Error {
        match error {
            BudgetError::TooSmall { kv_bytes, block_bytes } => {
                Error::BudgetTooSmall { kv_bytes, block_bytes }
            }
            BudgetError::ContextTooLarge { context_tokens, fits_tokens, .. } => {
                Error::ContextTooLarge { context_tokens, fits_tokens }
            }
        }
    }
}

impl From<SessionError> for Error {
    fn from(error: SessionError) -> Error {
        match error {
            SessionError::Runner(RunnerError::NoMemory { kv_bytes, source }) => {
                Error::NoMemory { kv_bytes, source }
            }
            SessionError::Engine(error) => error.into(),
            // A device, which no option of the library asks for.
            SessionError::Runner(error) => Error::Panic(error.to_string()),
        }
    }
}

impl From<TemplateError> for Error {
    fn from(error: TemplateError) -> Error {
        match error {
            TemplateError::Missing => Error::NoTemplate,
            error => Error::Template(error),
        }
    }
}

/// Runs a call and turns its panic into an error: a library must not end the program that uses it.
pub(crate) fn guard<T>(call: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    // Calls change state under locks whose poison is ignored, and by whole assignments.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| Err(Error::Panic(message(panic.as_ref()))))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_message() {
        let check = |call: fn() -> Result<(), Error>, expect: &str| match guard(call) {
            Err(Error::Panic(message)) => assert_eq!(message, expect),
            other => panic!("{other:?}"),
        };
        check(|| panic!("it broke"), "it broke");
        check(|| panic!("block {}", 7), "block 7");
        check(|| std::panic::panic_any(7), "panic");
        assert!(matches!(guard(|| Ok(7)), Ok(7)));
    }
}
