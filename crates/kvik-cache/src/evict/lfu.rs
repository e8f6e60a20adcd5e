//! Least frequently used, with ageing: the leaf goes that was reused least often.
//!
//! Of equally frequent ones the least recently used goes. What was popular once would stay for
//! ever; so every victim's rank becomes the ground on which later uses build (LFU with dynamic
//! ageing, Arlitt et al. 2000): a leaf that nobody uses any more is overtaken in time.

use super::{Context, Facts, Order, Ranking};
use crate::ids::NodeId;

/// Leaves by reuses, counted from the ground at their last use.
#[derive(Debug, Default)]
pub(crate) struct Lfu {
    leaves: Order,
    ground: u64,
}

impl Ranking for Lfu {
    fn insert(&mut self, leaf: NodeId, facts: Facts) {
        let rank = (self.ground + u64::from(facts.reuses), facts.used);
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
