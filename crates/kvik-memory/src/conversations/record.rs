//! Records of a conversation: its head, its system messages, and one record for each further message.
//!
//! ```text
//! head \0 tenant \0 id                  one key range holds the heads of all conversations
//! said \0 tenant \0 id \0               system messages, which are replaced together
//! said \0 tenant \0 id \0 00000003      the fourth message after the system messages
//! shared \0 tenant \0 id                the version in the fleet's store when this node last wrote or read it there
//! ```

use kvik_text::measure::json_bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::fleet::Content;
use super::head::{ConversationHead, ConversationKey};

/// Key range of all heads.
pub(super) const HEADS: [&str; 2] = ["head\0", "head\x01"];
/// Key range of all records of shared versions.
pub(super) const SHARED: [&str; 2] = ["shared\0", "shared\x01"];

/// A record of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Record {
    Head(ConversationHead),
    Systems(Vec<Value>),
    Message(Value),
    Shared(Content),
}

impl Record {
    /// Bytes of the record in the table.
    pub(super) fn bytes(&self) -> u64 {
        json_bytes(self) as u64
    }
}

impl ConversationKey {
    pub(super) fn head(&self) -> String {
        format!("head\0{}\0{}", self.tenant, self.id)
    }

    pub(super) fn systems(&self) -> String {
        format!("said\0{}\0{}\0", self.tenant, self.id)
    }

    /// Key of the message with this index after the system messages.
    pub(super) fn message(&self, index: usize) -> String {
        format!("said\0{}\0{}\0{index:08}", self.tenant, self.id)
    }

    pub(super) fn shared(&self) -> String {
        format!("shared\0{}\0{}", self.tenant, self.id)
    }

    /// Upper bound of the keys of the messages.
    pub(super) fn said_end(&self) -> String {
        format!("said\0{}\0{}\x01", self.tenant, self.id)
    }

    /// Parses the key of a record that each conversation has once.
    pub(super) fn of_record(text: &str) -> Option<ConversationKey> {
        let (tenant, id) = text.split_once('\0')?.1.split_once('\0')?;
        Some(ConversationKey { tenant: tenant.to_owned(), id: id.to_owned() })
    }
}
