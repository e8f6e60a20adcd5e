//! Evicted blocks, on their way back to the pool.

use crate::ids::BlockId;
use crate::pool::Pool;

/// Evicted blocks, with the blocks withheld for their places.
#[derive(Debug)]
#[must_use = "what is dropped is to be released"]
pub(crate) struct Dropped {
    pub(super) blocks: Vec<BlockId>,
    /// Blocks that were withheld for their places.
    pub(super) units: usize,
}

impl Dropped {
    /// Number of blocks that become free.
    pub(crate) fn blocks_worth(&self) -> usize {
        self.blocks.len() + self.units
    }

    /// Returns them to the pool, the last block first.
    pub(crate) fn release(self, pool: &mut Pool) {
        pool.restore(self.units);
        self.blocks.into_iter().rev().for_each(|block| pool.release(block));
    }
}
