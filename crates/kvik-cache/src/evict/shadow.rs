//! A small cache of fingerprints that a policy runs: how well would it have done?
//!
//! It holds a sample of the blocks, chosen by fingerprint, in as large a part of the room, so it
//! hits as often as a full one would (spatial sampling, Waldspurger et al. 2015). Every block
//! stands for itself: no tree.

use std::time::Duration;

use rustc_hash::FxHashMap;

use super::{Cause, Context, Facts, Ghosts, Past, Policy, Ranking, Worth};
use crate::hash::Fingerprint;
use crate::ids::NodeId;

/// One policy, and the blocks it would have kept.
#[derive(Debug)]
pub(crate) struct Shadow {
    pub(crate) policy: Policy,
    ranking: Box<dyn Ranking>,
    ghosts: Ghosts,
    /// Blocks that it may keep.
    blocks: usize,
    places: FxHashMap<Fingerprint, usize>,
    /// What stands in each place.
    kept: Vec<(Fingerprint, Facts)>,
    pub(crate) hits: f64,
}

impl Shadow {
    pub(crate) fn new(policy: Policy, blocks: usize, ghosts: usize) -> Shadow {
        Shadow {
            policy,
            ranking: policy.ranking(),
            ghosts: Ghosts::new(ghosts),
            blocks,
            places: FxHashMap::default(),
            kept: Vec::new(),
            hits: 0.0,
        }
    }

    /// A block was used that stands `depth` blocks deep.
    pub(crate) fn note(&mut self, block: Fingerprint, depth: u32, now: u64, worth: &Worth) {
        let Some(&place) = self.places.get(&block) else { return self.admit(block, depth, now, worth) };
        self.hits += 1.0;
        let facts = &mut self.kept[place].1;
        (facts.used, facts.reuses) = (now, facts.reuses + 1);
        let facts = *facts;
        self.ranking.remove(NodeId(place as u32));
        self.ranking.insert(NodeId(place as u32), facts);
    }

    fn admit(&mut self, block: Fingerprint, depth: u32, now: u64, worth: &Worth) {
        let back = self.ghosts.back(block);
        back.into_iter().for_each(|back| self.ranking.returned(back, self.blocks));
        let reuses = back.map_or(0, |back| back.reuses + 1);
        let new = (block, Facts { used: now, born: now, reuses, depth, blocks: 1 });
        let place = if self.kept.len() < self.blocks {
            self.kept.push(new);
            self.kept.len() - 1
        } else {
            let place = self.evict(now, worth);
            self.kept[place] = new;
            place
        };
        self.places.insert(block, place);
        self.ranking.insert(NodeId(place as u32), new.1);
    }

    fn evict(&mut self, now: u64, worth: &Worth) -> usize {
        let context = Context { now, capacity: self.blocks, worth };
        let leaf = self.ranking.victim(context).expect("a full shadow has something to give");
        self.ranking.remove(leaf);
        let (block, Facts { reuses, .. }) = self.kept[leaf.index()];
        self.places.remove(&block);
        let past = Past::new(Duration::ZERO, Cause::Evicted(self.policy), reuses);
        self.ghosts.remember(block, past);
        leaf.index()
    }
}
