//! Keys of conversations, and the metadata that is known without reading their messages.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::deletions::Owner;
use crate::random::random;

/// Maximum bytes of a name.
pub(super) const NAME_BYTES_MAX: usize = 128;
/// Prefix of ids; no name begins with it.
const ID_PREFIX: &str = "conv_";

/// The tenant and the id of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConversationKey {
    /// Name of the tenant.
    pub tenant: String,
    /// Id of the conversation.
    pub id: String,
}

/// Metadata of a conversation, known without reading its messages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationHead {
    /// Its name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Unix seconds.
    pub created: u64,
    /// Unix seconds.
    pub updated: u64,
    /// Model of the last turn, if the turn named one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Number of all messages, including the system messages.
    pub messages: usize,
    /// Number of leading system messages.
    pub systems: usize,
    /// Bytes of all message records.
    pub bytes: u64,
    /// Position in the order of changes: larger than that of every conversation changed before. Not a time,
    /// because clocks are set back.
    pub order: u64,
    /// Identity of the last change: random where nodes share conversations, 0 for a conversation that was
    /// never shared.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stamp: u64,
    /// Metadata that clients store with the conversation.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

impl ConversationKey {
    /// A new random key.
    pub(super) fn random(tenant: &str) -> ConversationKey {
        let id = format!("{ID_PREFIX}{:016x}{:08x}", random(), random() as u32);
        ConversationKey { tenant: tenant.to_owned(), id }
    }

    /// Owner of the data derived from this conversation.
    pub fn owner(&self) -> Owner {
        Owner::new(&self.tenant, &self.id)
    }
}

impl ConversationHead {
    /// Bytes that count for its tenant: those of its messages and of its metadata.
    pub(super) fn counted_bytes(&self) -> u64 {
        self.bytes + self.metadata_bytes()
    }

    /// Bytes of the client's metadata, which do not count in `bytes`.
    pub(super) fn metadata_bytes(&self) -> u64 {
        self.metadata.iter().map(|(name, text)| (name.len() + text.len()) as u64).sum()
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// True if a reference is an id; otherwise it is a name.
pub(super) fn is_id(reference: &str) -> bool {
    reference.starts_with(ID_PREFIX)
}

/// True if a node may have created this id; the store is not asked for others.
pub(super) fn is_known_id(id: &str) -> bool {
    let digits = id.strip_prefix(ID_PREFIX).unwrap_or_default();
    digits.len() == 24 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// True if this is a valid name of a conversation.
pub(super) fn is_name(name: &str) -> bool {
    !is_id(name) && (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(char::is_control)
}
