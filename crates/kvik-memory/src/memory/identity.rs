//! Which conversation it is: what of it is never let go, and the chain of what follows.

use crate::context::{ChainId, chain, chain_from, leading_systems, segments::exchanges};
use serde_json::Value;

use super::compaction::Compaction;

/// A conversation in the eyes of its tenant.
pub(super) struct Identity {
    /// System messages.
    pub(super) systems: usize,
    /// Messages that are never let go: system messages, and the opening exchange where that is protected.
    pub(super) prefix: usize,
    /// Identities of the messages behind the prefix.
    pub(super) chain: Vec<ChainId>,
}

impl Identity {
    /// Of messages that go on from a compaction item where there is one, whose chain goes on in theirs.
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
        let key = blake3::derive_key("kvik 2026 conversation of a tenant", tenant.as_bytes());
        let chain = match before {
            Some(before) => chain_from(before.chain(), &key, &messages[prefix..]),
            None => chain(&key, &messages[systems..]).split_off(opening),
        };
        Identity { systems, prefix, chain }
    }
}
