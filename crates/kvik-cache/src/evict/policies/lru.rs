//! Evicts the least recently used leaf.
//!
//! A sequence that ends unlocks its path from the deepest node up, so the last use of a parent is later than that
//! of its children; and all blocks of a node have the same last use, the deeper ones counting as older. So leaves
//! by last use, each evicted from its end, give the exact LRU order of blocks.

use crate::evict::facts::Facts;
use crate::evict::order::Order;
use crate::evict::ranking::{Context, Ranking};
use crate::ids::NodeId;

/// Leaves by last use.
#[derive(Debug, Default)]
pub(crate) struct Lru {
    leaves: Order,
}

impl Ranking for Lru {
    fn insert(&mut self, leaf: NodeId, facts: Facts) {
        self.leaves.insert(leaf, (facts.used, 0), facts.blocks);
    }

    fn remove(&mut self, leaf: NodeId) {
        self.leaves.remove(leaf);
    }

    fn shrink(&mut self, leaf: NodeId, by: u32) {
        self.leaves.shrink(leaf, by);
    }

    fn victim(&mut self, _context: Context<'_>) -> Option<NodeId> {
        self.leaves.first().map(|(_, leaf)| leaf)
    }

    fn needs_ghost_history(&self) -> bool {
        false
    }

    fn leaves(&self) -> Vec<NodeId> {
        self.leaves.leaves().collect()
    }
}
