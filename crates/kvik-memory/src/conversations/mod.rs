//! Conversations that are kept: whoever asks names one and says only what is new.
//!
//! ```text
//! a turn: hold -> what was said, and what is new -> answered -> both written in one -> the asker hears of the end
//!           |                                                          |
//!           '------------ nobody else changes the conversation --------'
//! ```
//!
//! Heads are in memory, what was said is read when it is asked for. A tenant's conversations exist for it alone.

mod copies;
mod error;
mod fleet;
mod head;
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
pub use search::{Findings, FoundConversation, SEARCHED_MAX, Search, first_behind};
pub use store::Conversations;
pub use turn::ConversationTurn;
