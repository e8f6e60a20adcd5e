//! Identity of a conversation: the prefix that is never dropped, and the chain of the messages after it.

use crate::context::{ChainId, chain, chain_from, leading_systems, segments::exchanges};
use serde_json::Value;

use super::compaction::Compaction;

/// A conversation, as identified within its tenant.
pub(super) struct Identity {
    /// Number of system messages.
    pub(super) systems: usize,
    /// Number of messages that are never dropped: system messages, and the opening exchange if it is
    /// protected.
    pub(super) prefix: usize,
    /// Identities of the messages after the prefix.
    pub(super) chain: Vec<ChainId>,
}

impl Identity {
    /// Identity of messages that follow the compaction item `before`, if there is one; its chain continues in
    /// theirs.
    pub(super) fn of(
        tenant: &str,
        messages: &[Value],
        before: Option<&Compaction>,
        protect_first: bool,
    ) -> Identity {
        let systems = leading_systems(messages);
        let opening = match before {
            Some(before) => before.opening.len(),
            None if protect_first => {
                exchanges(&messages[systems..]).first().map_or(0, |opening| opening.len())
            }
            None => 0,
        };
        let prefix = systems + opening;
        let key = key_of(tenant);
        let chain = match before {
            Some(before) => chain_from(before.chain(), &key, &messages[prefix..]),
            None => chain(&key, &messages[systems..]).split_off(opening),
        };
        Identity { systems, prefix, chain }
    }
}

/// The key of a tenant's identities.
pub(super) fn key_of(tenant: &str) -> [u8; 32] {
    blake3::derive_key("kvik 2026 conversation of a tenant", tenant.as_bytes())
}
