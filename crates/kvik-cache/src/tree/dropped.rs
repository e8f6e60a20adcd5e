//! What eviction took out of the tree, on its way back to the pool.

use crate::ids::BlockId;
use crate::pool::Pool;

/// What eviction took out of the tree.
#[derive(Debug)]
#[must_use = "what is dropped is to be released"]
pub(crate) struct Dropped {
    pub(super) blocks: Vec<BlockId>,
    /// Blocks' worth that their places took.
    pub(super) units: usize,
}

impl Dropped {
    /// Blocks' worth that it takes.
    pub(crate) fn blocks_worth(&self) -> usize {
        self.blocks.len() + self.units
    }

    /// Gives it back, the last block first.
    pub(crate) fn release(self, pool: &mut Pool) {
        pool.restore(self.units);
        self.blocks.into_iter().rev().for_each(|block| pool.release(block));
    }
}
