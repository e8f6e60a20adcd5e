//! Which conversation, and what is known of it without reading it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::deletions::Owner;
use crate::random::random;

/// Bytes of a name at most.
pub(super) const NAME_BYTES_MAX: usize = 128;
/// What ids begin with, and names do not.
const ID_PREFIX: &str = "conv_";

/// Whose conversation, and which.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConversationKey {
    /// Whose.
    pub tenant: String,
    /// Its id.
    pub id: String,
}

/// What is known of a conversation without reading it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationHead {
    /// Its name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Unix seconds.
    pub created: u64,
    /// Unix seconds.
    pub updated: u64,
    /// The model that was asked last, where that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// All of them, the system messages included.
    pub messages: usize,
    /// System messages that it begins with.
    pub systems: usize,
    /// Of all records of what was said.
    pub bytes: u64,
    /// Larger than that of every conversation that was changed before: clocks are set back.
    pub order: u64,
    /// Which change this is: random, where nodes share conversations; 0 for one that was never shared.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stamp: u64,
    /// What clients keep beside it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

impl ConversationKey {
    /// A key that no conversation has.
    pub(super) fn random(tenant: &str) -> ConversationKey {
        let id = format!("{ID_PREFIX}{:016x}{:08x}", random(), random() as u32);
        ConversationKey { tenant: tenant.to_owned(), id }
    }

    /// The same as whose what was computed of it is.
    pub fn owner(&self) -> Owner {
        Owner::new(&self.tenant, &self.id)
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Whether a reference is an id; it is a name otherwise.
pub(super) fn is_id(reference: &str) -> bool {
    reference.starts_with(ID_PREFIX)
}

/// Whether an id may be one that a node has made: others are not asked for.
pub(super) fn is_known_id(id: &str) -> bool {
    let digits = id.strip_prefix(ID_PREFIX).unwrap_or_default();
    digits.len() == 24 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether this may be a conversation's name.
pub(super) fn is_name(name: &str) -> bool {
    !is_id(name) && (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(char::is_control)
}
