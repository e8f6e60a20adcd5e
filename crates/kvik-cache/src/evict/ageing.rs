//! Leaves by weight, with the ageing value of GreedyDual (GDSF): the rank of a leaf is the weight of its last use
//! plus the ageing value at that time, and every victim raises the ageing value to its own rank. So leaves used
//! later overtake one that is no longer used. The weight is the policy's (`lfu`, `cost`).

use super::facts::Facts;
use super::order::Order;
use super::ranking::{Context, Ranking};
use crate::ids::NodeId;

/// Evicts the leaf with the lowest rank; of equal ones the least recently used.
#[derive(Debug)]
pub(crate) struct Ageing {
    leaves: Order,
    ageing: u64,
    /// The weight of a leaf at its last use.
    weight: fn(&Facts) -> u64,
}

impl Ageing {
    pub(super) fn by(weight: fn(&Facts) -> u64) -> Ageing {
        Ageing { leaves: Order::default(), ageing: 0, weight }
    }
}

impl Ranking for Ageing {
    fn insert(&mut self, leaf: NodeId, facts: Facts) {
        let rank = (self.ageing + (self.weight)(&facts), facts.used);
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
        self.ageing = self.ageing.max(rank);
        Some(leaf)
    }

    fn leaves(&self) -> Vec<NodeId> {
        self.leaves.leaves().collect()
    }
}
