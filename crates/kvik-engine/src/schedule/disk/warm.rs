//! What is brought back at the start, before anybody asks: pinned prefixes, then the hottest ones, one
//! after the other while nobody waits, until the budget for it is used.

use std::time::Duration;

use kvik_cache::tier::{Chain, SlotId};
use kvik_cache::{BLOCK_POSITIONS, Identity, NamespaceId};
use rustc_hash::FxHashMap;

use super::{Disk, DiskSetup, Roots};
use crate::schedule::Scheduler;

/// Time that one prefix may take; a request that waits for it has less patience.
const WARM_PATIENCE: Duration = Duration::from_secs(30);

/// A prefix to be loaded.
#[derive(Debug)]
pub(super) struct Wish {
    namespace: NamespaceId,
    chain: Chain,
}

impl Scheduler {
    /// Gives the scheduler its disk, with the wishes of the start.
    pub fn attach(&mut self, setup: DiskSetup) {
        let roots = setup.warm.iter().map(|namespace| {
            let id = self.cache.namespace(namespace);
            self.roots.entry(id).or_insert_with(|| Roots::of(namespace));
            (Identity::root(namespace), id)
        });
        let roots: FxHashMap<Identity, NamespaceId> = roots.collect();
        let chains = setup.tier.warmest(setup.warm_blocks, setup.epoch_s);
        let mut wishes: Vec<Wish> = chains
            .into_iter()
            .filter_map(|chain| Some(Wish { namespace: *roots.get(&chain.root)?, chain }))
            .collect();
        wishes.reverse();
        self.disk = Some(Disk { warm: wishes, ..Disk::new(setup) });
    }

    /// Begins to load the next prefix of the start when nothing else is read or waits.
    pub(in crate::schedule) fn warm_up(&mut self) {
        if !self.waiting.is_empty() {
            return;
        }
        while let Some(Wish { namespace, chain }) = self.disk.as_mut().and_then(Disk::next_wish) {
            let now = self.now();
            let known = self.cache.lookup(namespace, &chain.tokens).tokens / BLOCK_POSITIONS;
            let slots = self.disk.as_ref().map(|disk| disk.still_there(&chain, known, disk.wall_s(now)));
            let slots = slots.unwrap_or_default();
            if !slots.is_empty() && self.start_load(namespace, chain.tokens, slots, now + WARM_PATIENCE) {
                return;
            }
        }
    }
}

impl Disk {
    /// Forgets what was to be brought back: the namespaces are names in another cache.
    pub(in crate::schedule) fn drop_wishes(&mut self) {
        self.warm.clear();
    }

    /// The best wish, unless a load is under way.
    fn next_wish(&mut self) -> Option<Wish> {
        if self.loads.is_empty() { self.warm.pop() } else { None }
    }

    /// The slots of a wish from its block `known` on, when the disk still has all of them.
    fn still_there(&self, chain: &Chain, known: usize, now_s: u64) -> Vec<SlotId> {
        let found = self.tier.find(&chain.root, &chain.tokens, now_s).slots;
        if found.len() == chain.slots.len() { found[known.min(found.len())..].to_vec() } else { Vec::new() }
    }
}
