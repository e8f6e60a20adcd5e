//! Least recently used: the leaf goes whose last use is longest ago.
//!
//! A sequence that ends lets go of its path from the deepest node up, so a parent was always used
//! after its children; and all blocks of a node were last used together, the later ones counting
//! as older. So leaves by last use, each read from its end, are the exact order of blocks.

use super::{Context, Facts, Order, Ranking};
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

    fn leaves(&self) -> Vec<NodeId> {
        self.leaves.leaves().collect()
    }
}
