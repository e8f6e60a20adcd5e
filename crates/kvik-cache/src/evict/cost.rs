//! Bytes against the time to recompute them: the leaf goes that is cheapest to lose.
//!
//! All blocks have the same size, so what differs is the time to compute one again. That of the
//! weights is the same for every token, that of attention grows with the positions before it:
//!
//! ```text
//! time of a block at depth d  ~  1 + d / EVEN_DEPTH        d in blocks from the root
//! ```
//!
//! `EVEN_DEPTH` is where both are equal: weights cost 2 x parameters operations a token, attention
//! 4 x layers x heads x head size x positions, which for models of 0.6 B to 8 B parameters meet
//! between 4,000 and 14,000 tokens; 4,096 are taken. A leaf's rank is that time, multiplied by its
//! uses, on the ground that rises with every victim (GreedyDual-Size-Frequency, Cherkasova 1998).

use super::{Context, Facts, Order, Ranking};
use crate::ids::NodeId;

/// Blocks before one for which attention takes as long as the weights.
const EVEN_DEPTH: u64 = 256;

/// Leaves by the time to compute their last block again, from the ground at their last use.
#[derive(Debug, Default)]
pub(crate) struct Cost {
    leaves: Order,
    ground: u64,
}

impl Ranking for Cost {
    fn insert(&mut self, leaf: NodeId, facts: Facts) {
        let time = EVEN_DEPTH + u64::from(facts.depth);
        let rank = self.ground + (1 + u64::from(facts.reuses)) * time;
        self.leaves.insert(leaf, (rank, facts.used), facts.blocks);
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
