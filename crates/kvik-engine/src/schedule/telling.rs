//! Cache events for external observers: see [`KvEvent`].

use kvik_cache::{Change, StoredBlocks};

use super::prefixes::Prefixes;
use crate::api::{KvEvent, KvStored};

impl Prefixes {
    /// Starts to record what happens to blocks of prompts with these salts, until it is
    /// [taken](Prefixes::take_kv_events). Must be called before anything is computed.
    pub fn tell(&mut self, salts: Vec<[u8; 16]>) {
        self.tenants.namespaces.tell(salts);
        self.ram.keep_journal();
    }

    /// Returns the events since the last call, in order; empty unless [enabled](Prefixes::tell). The first event says
    /// that the cache is empty.
    pub fn take_kv_events(&mut self) -> Vec<KvEvent> {
        let cleared = self.ram.take_renewed().then_some(KvEvent::Cleared);
        let changes = self.ram.cache.take_journal().into_iter().map(|change| match change {
            Change::Removed(blocks) => KvEvent::Removed(blocks),
            Change::Stored(StoredBlocks { namespace, parent, blocks, tokens }) => {
                let adapter = self.tenants.namespaces.roots(namespace).adapter;
                KvEvent::Stored(KvStored { parent, blocks, tokens, adapter })
            }
        });
        cleared.into_iter().chain(changes).collect()
    }
}
