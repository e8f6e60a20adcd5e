//! Conversations that the server keeps: a client names one and sends only what is new.
//!
//! ```text
//! a turn: hold -> what was said, and what is new -> answered -> both written in one -> the client hears of the end
//!           |                                                          |
//!           '------------ nobody else changes the conversation --------'
//! ```
//!
//! Heads are in memory, what was said is read when it is asked for. A tenant's conversations exist for it alone.

mod error;
mod held;
mod limits;
mod record;
mod search;
mod shelf;
mod store;
#[cfg(test)]
mod tests;
mod turn;

pub(crate) use error::ConversationError;
pub(crate) use held::Held;
pub(crate) use limits::MESSAGES_MAX;
pub(crate) use record::{ConversationHead, ConversationKey};
pub(crate) use search::{Findings, FoundConversation, SEARCHED_MAX, Search, first_behind};
pub(crate) use store::Conversations;
pub(crate) use turn::{ConversationReport, ConversationTurn, Writing, written};
