//! Stored conversations: a client names a conversation and sends only the new messages.
//!
//! ```text
//! a turn: hold -> stored and new messages -> answered -> both written atomically -> the client gets the end
//!           |                                                          |
//!           '------- no other request changes the conversation -------'
//! ```
//!
//! The heads are in memory; messages are read on demand. A tenant cannot see the conversations of another.

mod copies;
mod error;
mod fleet;
mod head;
mod head_map;
mod held;
mod limits;
mod record;
mod search;
mod sharing;
mod shelf;
mod store;
#[cfg(test)]
mod tests;
mod turn;
#[cfg(test)]
mod twin;

pub use error::ConversationError;
pub use head::{ConversationHead, ConversationKey};
pub use held::Held;
pub use limits::MESSAGES_MAX;
pub use search::{Findings, FoundConversation, SEARCHED_MAX, Search};
pub use shelf::OnFork;
pub use store::Conversations;
pub use turn::ConversationTurn;
