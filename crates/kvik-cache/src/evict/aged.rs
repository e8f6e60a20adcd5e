//! Leaves by a weight that each gets at its last use, on a ground that rises with every victim: so what
//! nobody uses any more is overtaken in time. What the weight is, is the policy (`lfu`, `cost`).

use super::{Context, Facts, Order, Ranking};
use crate::ids::NodeId;

/// The leaf with the lowest rank goes; of equal ones the least recently used.
#[derive(Debug)]
pub(crate) struct Aged {
    leaves: Order,
    ground: u64,
    /// What a leaf is worth at its last use.
    weight: fn(&Facts) -> u64,
}

impl Aged {
    pub(super) fn by(weight: fn(&Facts) -> u64) -> Aged {
        Aged { leaves: Order::default(), ground: 0, weight }
    }
}

impl Ranking for Aged {
    fn insert(&mut self, leaf: NodeId, facts: Facts) {
        let rank = (self.ground + (self.weight)(&facts), facts.used);
        self.leaves.insert(leaf, rank, facts.blocks);
    }

    fn remove(&mut self, leaf: NodeId) {
        self.leaves.remove(leaf);
    }

    fn shrink(&mut self, leaf: NodeId, by: u32) {
        self.leaves.shrink(leaf, by);
    }

    fn victim(&mut self, _context: Context<'_>) -> Option<NodeId> {
        let ((rank, _), leaf) = self.leaves.first()?;
        self.ground = self.ground.max(rank);
        Some(leaf)
    }

    fn leaves(&self) -> Vec<NodeId> {
        self.leaves.leaves().collect()
    }
}
