//! A small cache of fingerprints that one policy runs, to measure how well it would have done.
//!
//! It holds a sample of the blocks, chosen by fingerprint, in an equal part of the space, so its hit rate equals
//! that of a full cache (spatial sampling, Waldspurger et al. 2015). Every block is a leaf: there is no tree.

use std::time::Duration;

use rustc_hash::FxHashMap;

use super::ghosts::{Cause, Ghost, Ghosts};
use super::gittins::Gittins;
use super::policies::Policy;
use super::ranking::{Context, Facts, Ranking};
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
    slots: FxHashMap<Fingerprint, usize>,
    /// What each slot holds; a slot is a leaf of the ranking.
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
            slots: FxHashMap::default(),
            kept: Vec::new(),
            hits: 0.0,
        }
    }

    /// Notes the use of a block that is the `depth`th of its prefix.
    pub(crate) fn note(&mut self, block: Fingerprint, depth: u32, now: u64, gittins: &Gittins) {
        let Some(&slot) = self.slots.get(&block) else { return self.admit(block, depth, now, gittins) };
        self.hits += 1.0;
        let facts = &mut self.kept[slot].1;
        (facts.used, facts.reuses) = (now, facts.reuses + 1);
        let facts = *facts;
        self.ranking.remove(NodeId(slot as u32));
        self.ranking.insert(NodeId(slot as u32), facts);
    }

    fn admit(&mut self, block: Fingerprint, depth: u32, now: u64, gittins: &Gittins) {
        let back = self.ghosts.back(block);
        back.into_iter().for_each(|back| self.ranking.returned(back, self.blocks));
        let reuses = back.map_or(0, |back| back.reuses + 1);
        let new = (block, Facts { used: now, born: now, reuses, depth, blocks: 1 });
        let slot = if self.kept.len() < self.blocks {
            self.kept.push(new);
            self.kept.len() - 1
        } else {
            let slot = self.evict(now, gittins);
            self.kept[slot] = new;
            slot
        };
        self.slots.insert(block, slot);
        self.ranking.insert(NodeId(slot as u32), new.1);
    }

    fn evict(&mut self, now: u64, gittins: &Gittins) -> usize {
        let context = Context { now, capacity: self.blocks, gittins };
        let leaf = self.ranking.victim(context).expect("a full shadow has a leaf");
        self.ranking.remove(leaf);
        let (block, Facts { reuses, .. }) = self.kept[leaf.index()];
        self.slots.remove(&block);
        let ghost = Ghost::new(Duration::ZERO, Cause::Evicted(self.policy), reuses);
        self.ghosts.remember(block, ghost);
        leaf.index()
    }
}
