//! What is told of the cache to somebody outside: see [`KvEvent`].

use kvik_cache::{Change, StoredBlocks};

use super::Scheduler;
use crate::api::{KvEvent, KvStored};

impl Scheduler {
    /// From now on what happens to blocks of prompts with these salts is noted, until it is [taken](Scheduler::take_told).
    /// Nothing may have been computed yet.
    pub fn tell(&mut self, salts: Vec<[u8; 16]>) {
        self.tenants.namespaces.tell(salts);
        self.ram.keep_journal();
    }

    /// What happened since this was asked last, in order; nothing unless it is [told](Scheduler::tell). The first is that
    /// nothing is there.
    pub fn take_told(&mut self) -> Vec<KvEvent> {
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
