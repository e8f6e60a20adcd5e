//! Errors of reading or changing a conversation.

use super::head::NAME_BYTES_MAX;
use crate::records::RecordsError;

/// An error of reading or changing a conversation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConversationError {
    /// The tenant has no conversation with that name or id.
    #[error("there is no conversation `{0}`")]
    NotFound(String),
    /// The tenant has no conversation with the id after which a list or search should start.
    #[error("there is no conversation `{0}`")]
    NothingBehind(String),
    /// Another request is changing the conversation.
    #[error(
        "the conversation `{0}` is being answered or changed by another request; send this one when that has ended"
    )]
    Busy(String),
    /// Another conversation has the name.
    #[error("another conversation has the name `{0}`; choose another name, or delete that one first")]
    NameTaken(String),
    /// The text is not a valid name.
    #[error(
        "a conversation's name has 1 to {NAME_BYTES_MAX} bytes, no control characters, and does not begin with `conv_`"
    )]
    BadName,
    /// A limit of one conversation is reached.
    #[error("{what}, {have} of them, and {max} is the limit; go on in another conversation")]
    Full {
        /// Quantity that would exceed the limit.
        what: &'static str,
        /// Value that the quantity would have.
        have: u64,
        /// Limit.
        max: u64,
    },
    /// A limit on all conversations of a tenant together is reached.
    #[error("{what}, {have} of them, and {max} is the limit; delete some first")]
    AllFull {
        /// Quantity that would exceed the limit.
        what: &'static str,
        /// Value that the quantity would have.
        have: u64,
        /// Limit.
        max: u64,
    },
    /// A request refers to messages beyond the end of the conversation.
    #[error("`{field}` is {asked}, and the conversation has {messages} messages")]
    BeyondItsEnd {
        /// Name of the argument.
        field: &'static str,
        /// Value of the argument.
        asked: usize,
        /// Number of messages in the conversation.
        messages: usize,
    },
    /// The newest version may be on other nodes, and cannot be read from them.
    #[error(
        "the conversation `{0}` cannot be read now: other nodes may have changed it, and the store that they share does not answer; send this again later"
    )]
    Elsewhere(String),
    /// Another node has changed the conversation concurrently.
    #[error(
        "the conversation `{of}` was changed by another node meanwhile; what was said here is kept as `{fork}`"
    )]
    Forked {
        /// Id of the conversation.
        of: String,
        /// Id of the conversation to which this node's changes were moved.
        fork: String,
    },
    /// A record is missing or unreadable.
    #[error("a message of the conversation `{0}` cannot be read: the log names its record")]
    Damaged(String),
    /// The records file has failed.
    #[error(transparent)]
    Records(#[from] RecordsError),
}
