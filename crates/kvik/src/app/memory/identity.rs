//! Which conversation it is: what of it is never let go, and the chain of what follows.

use kvik_engine::conversation::{ChainId, MemorySettings, chain, segments::exchanges};
use serde_json::Value;

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
    pub(super) fn of(tenant: &str, messages: &[Value], settings: &MemorySettings) -> Identity {
        let is_system = |message: &&Value| matches!(message["role"].as_str(), Some("system" | "developer"));
        let systems = messages.iter().take_while(is_system).count();
        let opening = exchanges(&messages[systems..]).first().map_or(0, |opening| opening.len());
        let prefix = systems + if settings.protect_first { opening } else { 0 };
        let key = blake3::derive_key("kvik 2026 conversation of a tenant", tenant.as_bytes());
        let chain = chain(&key, &messages[systems..]).split_off(prefix - systems);
        Identity { systems, prefix, chain }
    }
}
