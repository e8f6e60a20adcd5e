//! What is brought back at the start, before anybody asks: pinned prefixes, then the hottest ones, one
//! after the other while nobody waits, until the budget for it is used.

use std::time::Duration;

use kvik_cache::tier::{Chain, SlotId};
use kvik_cache::{BLOCK_POSITIONS, Identity, NamespaceId};
use rustc_hash::FxHashMap;

use super::load::Reason;
use super::{Disk, DiskSetup};
use crate::schedule::{Scheduler, TenantPart};

/// Time that one prefix may take; a request that waits for it too has a patience of its own.
const WARM_PATIENCE: Duration = Duration::from_secs(30);

/// What loading costs while nobody waits for it, beside the time that it saves who would wait: bandwidth
/// and RAM that others may need.
const IDLE_COST: f64 = 0.1;

/// A prefix to be loaded.
#[derive(Debug)]
pub(super) struct Wish {
    namespace: NamespaceId,
    chain: Chain,
}

impl Scheduler {
    /// Gives the scheduler its disk, with the wishes of the start; tenants' come when they are told.
    pub fn attach(&mut self, setup: DiskSetup) {
        let mut disk = Disk::new(setup);
        let namespace = self.namespace([0; 16]);
        disk.wish(&FxHashMap::from_iter([(self.roots[&namespace].identity, namespace)]));
        self.disk = Some(disk);
    }

    /// Brings back what these tenants had in use before the start.
    pub(in crate::schedule) fn wish_for(&mut self, parts: &[TenantPart]) {
        let namespaces: Vec<NamespaceId> = parts.iter().map(|part| self.namespace(part.salt)).collect();
        // Whose they are must be known before they come back: their pins count.
        parts.iter().zip(&namespaces).for_each(|(part, &id)| self.settle_owner(id, part.tenant, part.salt));
        let roots: FxHashMap<Identity, NamespaceId> =
            namespaces.into_iter().map(|id| (self.roots[&id].identity, id)).collect();
        if let Some(disk) = &mut self.disk {
            disk.wish(&roots);
        }
    }

    /// Begins to load the next prefix of the start when nothing else is read or waits.
    pub(in crate::schedule) fn warm_up(&mut self) {
        if !self.queue.is_empty() {
            return;
        }
        while let Some(Wish { namespace, chain }) = self.disk.as_mut().and_then(Disk::next_wish) {
            let now = self.now();
            let known = self.cache.lookup(namespace, &chain.tokens).tokens / BLOCK_POSITIONS;
            if known == chain.slots.len() {
                // A request was faster.
                self.pin_as_on_disk(namespace, &chain.tokens);
                continue;
            }
            let slots = self.disk.as_ref().map(|disk| disk.still_there(&chain, known, disk.wall_s(now)));
            let slots = slots.unwrap_or_default();
            let deadline = now + WARM_PATIENCE;
            if self.start_load(namespace, chain.tokens, slots, deadline, Reason::Warm).is_some() {
                return;
            }
        }
    }
}

impl Disk {
    /// Wishes for what was hot under these roots when the process before this one ended; once.
    fn wish(&mut self, roots: &FxHashMap<Identity, NamespaceId>) {
        let (mine, others): (Vec<Chain>, Vec<Chain>) =
            std::mem::take(&mut self.found).into_iter().partition(|chain| roots.contains_key(&chain.root));
        self.found = others;
        // The best ones last, where they are taken from.
        let wishes = mine.into_iter().rev().map(|chain| Wish { namespace: roots[&chain.root], chain });
        self.warm.splice(0..0, wishes);
    }

    /// Forgets what was to be brought back: the namespaces are names in another cache.
    pub(in crate::schedule) fn drop_wishes(&mut self) {
        self.warm.clear();
    }

    /// The best wish that pays, unless a load is under way.
    fn next_wish(&mut self) -> Option<Wish> {
        if !self.loads.is_empty() {
            return None;
        }
        while let Some(wish) = self.warm.pop() {
            if self.pays(&wish.chain) {
                return Some(wish);
            }
        }
        None
    }

    /// Whether the time that a prefix is expected to save exceeds what bringing it back costs. A use saves
    /// the waiting for a load, or less where computing is faster.
    fn pays(&self, chain: &Chain) -> bool {
        let load_s = self.cost.load_time(chain.slots.len()).map_or(1.0, |time| time.as_secs_f64());
        let compute_s = self.cost.compute_time(chain.tokens.len()).map_or(load_s, |time| time.as_secs_f64());
        chain.expected_uses * load_s.min(compute_s) > IDLE_COST * load_s
    }

    /// The slots of a wish from its block `known` on, when the disk still has all of them: as many blocks
    /// may be there that end with other tokens.
    fn still_there(&self, chain: &Chain, known: usize, now_s: u64) -> Vec<SlotId> {
        let found = self.tier.find(&chain.root, &chain.tokens, now_s);
        let whole = found.tokens == chain.tokens.len() && found.slots.len() == chain.slots.len();
        if whole { found.slots[known.min(found.slots.len())..].to_vec() } else { Vec::new() }
    }
}
