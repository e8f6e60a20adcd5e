//! The beginning of a conversation as whoever asks can keep it and send it back in its place.
//!
//! It holds the summary, the recent messages behind it and where it stands in the chain of messages, so it is understood
//! by a program that has forgotten all of it.

use crate::context::ChainId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::book::Summary;

/// What stands for the beginning of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Compaction {
    /// System messages.
    pub systems: Vec<Value>,
    /// The opening exchange, where that is never let go.
    pub opening: Vec<Value>,
    /// Of the messages before `recent`.
    pub summary: Summary,
    /// Stands for the messages that the summary covers.
    pub chain: [u8; 32],
    /// Messages behind the summary, as they were said.
    pub recent: Vec<Value>,
}

impl Compaction {
    pub(super) fn chain(&self) -> ChainId {
        ChainId(self.chain)
    }

    /// Its summary, as one of a conversation that begins behind it.
    pub(super) fn base(&self) -> Summary {
        Summary { covers: 0, ready: true, read: true, ..self.summary.clone() }
    }
}
