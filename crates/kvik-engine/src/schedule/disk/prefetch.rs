//! Prefetching: what is brought back at the start, before anybody asks. First pinned prefixes, then the
//! hottest ones, one after the other while nobody waits, until the budget for it is used.

use std::time::Duration;

use kvik_cache::tier::{Chain, SlotId};
use kvik_cache::{BLOCK_POSITIONS, Identity, NamespaceId};
use rustc_hash::FxHashMap;

use super::load::{Prefix, Reason};
use super::{Disk, LoadContext};
use crate::schedule::namespaces::NamespaceTable;

/// Time that one prefix may take; a request that waits for it too has a patience of its own.
const PREFETCH_TIME: Duration = Duration::from_secs(30);

/// What loading costs while nobody waits for it, as a share of the time that it saves a request that would
/// wait: bandwidth and RAM that others may need.
const IDLE_COST: f64 = 0.1;

/// A prefix that may be prefetched.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) namespace: NamespaceId,
    chain: Chain,
}

impl Disk {
    /// Makes what was hot in these namespaces when the process before this one ended candidates; once.
    pub(crate) fn add_candidates(&mut self, namespaces: &[NamespaceId], table: &NamespaceTable) {
        let roots: FxHashMap<Identity, NamespaceId> =
            namespaces.iter().map(|&id| (table.roots(id).identity, id)).collect();
        let (mine, others): (Vec<Chain>, Vec<Chain>) =
            std::mem::take(&mut self.found).into_iter().partition(|chain| roots.contains_key(&chain.root));
        self.found = others;
        // The best ones last, where they are taken from.
        let mine = mine.into_iter().rev();
        let candidates = mine.map(|chain| Candidate { namespace: roots[&chain.root], chain });
        self.candidates.splice(0..0, candidates);
    }

    /// Whether there are candidates left.
    pub(crate) fn has_candidates(&self) -> bool {
        !self.candidates.is_empty()
    }

    /// Forgets the candidates: their namespaces are names in another cache.
    pub(crate) fn drop_candidates(&mut self) {
        self.candidates.clear();
    }

    /// Begins to load the next candidate, unless a load is under way. Nobody must wait.
    pub(crate) fn prefetch(&mut self, context: &mut LoadContext<'_>) {
        while let Some(Candidate { namespace, chain }) = self.next_candidate() {
            let known = context.ram.cache.lookup(namespace, &chain.tokens).tokens / BLOCK_POSITIONS;
            if known == chain.slots.len() {
                // A request was faster.
                self.pin_as_on_disk(namespace, &chain.tokens, context);
                continue;
            }
            let slots = self.still_there(&chain, known, self.wall_s(context.now));
            let prefix = Prefix { namespace, tokens: chain.tokens, slots, pieces: Vec::new(), far: None };
            let deadline = context.now + PREFETCH_TIME;
            if self.start_load(prefix, deadline, Reason::Prefetch, context).is_some() {
                return;
            }
        }
    }

    /// The best candidate that is worth loading, unless a load is under way.
    fn next_candidate(&mut self) -> Option<Candidate> {
        if !self.loads.is_empty() {
            return None;
        }
        while let Some(candidate) = self.candidates.pop() {
            if self.is_worth_loading(&candidate.chain) {
                return Some(candidate);
            }
        }
        None
    }

    /// Whether the time that a prefix is expected to save exceeds what bringing it back costs. A use saves
    /// the waiting for a load, or less where computing is faster.
    fn is_worth_loading(&self, chain: &Chain) -> bool {
        let load_s = self.cost.load_time(self.reads(&chain.slots)).map_or(1.0, |time| time.as_secs_f64());
        let compute_s = self.cost.compute_time(chain.tokens.len()).map_or(load_s, |time| time.as_secs_f64());
        chain.expected_uses * load_s.min(compute_s) > IDLE_COST * load_s
    }

    /// The slots of a candidate from its block `known` on, when the disk still has all of them: as many blocks
    /// may be there that end with other tokens.
    fn still_there(&self, chain: &Chain, known: usize, now_s: u64) -> Vec<SlotId> {
        let found = self.tier.find(&chain.root, &chain.tokens, now_s);
        let whole = found.tokens == chain.tokens.len() && found.slots.len() == chain.slots.len();
        if whole { found.slots[known.min(found.slots.len())..].to_vec() } else { Vec::new() }
    }
}
