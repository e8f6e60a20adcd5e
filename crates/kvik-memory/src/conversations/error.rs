//! Why a conversation is not read or not changed.

use super::head::NAME_BYTES_MAX;
use crate::records::RecordsError;

/// What stands in the way.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConversationError {
    /// The tenant has none of that name or id.
    #[error("there is no conversation `{0}`")]
    NotFound(String),
    /// The tenant has none of that id, behind which others are asked for.
    #[error("there is no conversation `{0}`")]
    NothingBehind(String),
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
    /// A bound of one conversation is reached.
    #[error("{what}, {have} of them, and {max} is the limit; go on in another conversation")]
    Full {
        /// What there would be too many of.
        what: &'static str,
        /// How many there would be.
        have: u64,
        /// How many there may be.
        max: u64,
    },
    /// A bound of all of a tenant's conversations together is reached.
    #[error("{what}, {have} of them, and {max} is the limit; delete some first")]
    AllFull {
        /// What there would be too many of.
        what: &'static str,
        /// How many there would be.
        have: u64,
        /// How many there may be.
        max: u64,
    },
    /// Messages are asked for that were never said.
    #[error("`{field}` is {asked}, and the conversation has {messages} messages")]
    BeyondItsEnd {
        /// Which argument says so.
        field: &'static str,
        /// What it says.
        asked: usize,
        /// Messages that there are.
        messages: usize,
    },
    /// Other nodes have it, and it cannot be read from them.
    #[error(
        "the conversation `{0}` cannot be read now: other nodes may have changed it, and the store that they share does not answer; send this again later"
    )]
    Elsewhere(String),
    /// Another node has changed it while this one did not know.
    #[error(
        "the conversation `{of}` was changed by another node meanwhile; what was said here is kept as `{fork}`"
    )]
    Forked {
        /// Its id.
        of: String,
        /// The id of the conversation that has what was said here.
        fork: String,
    },
    /// A record is gone or cannot be read.
    #[error("a message of the conversation `{0}` cannot be read: the log names its record")]
    Damaged(String),
    /// The file that they are kept in does not do what it should.
    #[error(transparent)]
    Records(#[from] RecordsError),
}
