//! How much memory keys and values have.

use kvik_cache::Beside;

/// Memory for keys and values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KvBudget {
    pub(crate) blocks: usize,
    /// The flag that says how much it is.
    pub(crate) flag: &'static str,
    /// Bytes of a block, without the part of layers with windows.
    pub(crate) block_bytes: usize,
    /// Bytes of a block on disk, with it.
    pub(crate) stored_bytes: usize,
    /// What sequences hold beside blocks.
    pub(crate) beside: Beside,
    /// Bytes of a block of the draft model, which has as many; 0 without one.
    pub(crate) draft_bytes: usize,
    /// Formats of keys and values, as `f16` or `q8/f16`.
    pub(crate) kv: String,
    /// Compute threads.
    pub(crate) threads: usize,
}

impl KvBudget {
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks as u64 * self.block_bytes as u64
    }

    /// Tokens of one sequence that fit.
    pub(crate) fn tokens(&self) -> usize {
        self.beside.positions_that_fit(self.blocks)
    }
}
