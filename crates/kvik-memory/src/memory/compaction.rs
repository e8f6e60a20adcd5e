//! An item that replaces the beginning of a conversation: the client stores it and sends it back.
//!
//! The item holds the summary, the recent messages after it, and the position in the chain of messages, so a server
//! that has stored none of these understands it.

use crate::context::ChainId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::book::Summary;

/// Replacement for the beginning of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Compaction {
    /// System messages.
    pub systems: Vec<Value>,
    /// The opening exchange, if it is never dropped.
    pub opening: Vec<Value>,
    /// Summary of the messages before `recent`.
    pub summary: Summary,
    /// Chain identity of the messages that the summary covers.
    pub chain: [u8; 32],
    /// Messages after the summary, verbatim.
    pub recent: Vec<Value>,
}

impl Compaction {
    pub(super) fn chain(&self) -> ChainId {
        ChainId(self.chain)
    }

    /// The summary, as the base of a conversation that begins after it.
    pub(super) fn base(&self) -> Summary {
        Summary { covers: 0, ready: true, read: true, ..self.summary.clone() }
    }
}
