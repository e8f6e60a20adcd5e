//! Adaptive replacement (Megiddo and Modha 2003): recency and frequency divide the space, and blocks that are
//! recomputed after their eviction shift the division.
//!
//! Leaves that were never reused are *recent*, the others *frequent*, each by last use. `recent` may hold `target`
//! blocks. A recomputed block that had never been reused was evicted too early from the recent side, so the target
//! rises; one that had been reused lowers it. The ghosts stand in for the two lists of evicted blocks.

use crate::evict::facts::Facts;
use crate::evict::order::Order;
use crate::evict::ranking::{Context, Ranking, Return};
use crate::ids::NodeId;

/// Both sides, and the division of the space.
#[derive(Debug, Default)]
pub(crate) struct Arc {
    recent: Order,
    frequent: Order,
    /// Blocks that `recent` may hold.
    target: usize,
}

impl Ranking for Arc {
    fn insert(&mut self, leaf: NodeId, facts: Facts) {
        let side = if facts.reuses == 0 { &mut self.recent } else { &mut self.frequent };
        side.insert(leaf, (facts.used, 0), facts.blocks);
    }

    fn remove(&mut self, leaf: NodeId) {
        if self.recent.remove(leaf).is_none() {
            self.frequent.remove(leaf);
        }
    }

    fn shrink(&mut self, leaf: NodeId, by: u32) {
        self.recent.shrink(leaf, by);
        self.frequent.shrink(leaf, by);
    }

    fn victim(&mut self, _context: Context<'_>) -> Option<NodeId> {
        let recent = self.recent.first().filter(|_| self.recent.blocks() > self.target);
        recent.or(self.frequent.first()).or(self.recent.first()).map(|(_, leaf)| leaf)
    }

    fn returned(&mut self, back: Return, capacity: usize) {
        let Return { reuses, ghosts_recent, ghosts_frequent } = back;
        self.target = if reuses == 0 {
            (self.target + (ghosts_frequent / ghosts_recent.max(1)).max(1)).min(capacity)
        } else {
            self.target.saturating_sub((ghosts_recent / ghosts_frequent.max(1)).max(1))
        };
    }

    fn leaves(&self) -> Vec<NodeId> {
        self.recent.leaves().chain(self.frequent.leaves()).collect()
    }
}
