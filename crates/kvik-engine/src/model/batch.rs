//! What one step asks of the model: rows of tokens against block tables.

use kvik_cache::{BlockId, Token};

/// One position of one sequence to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Index into [`Batch::tables`]: whose keys and values this row reads and extends.
    pub table: u32,
    /// The token at this position.
    pub token: Token,
    /// Position in its sequence, from 0. The row attends to positions `0..=position`.
    pub position: u32,
    /// Whether the logits of this row are wanted.
    pub logits: bool,
}

/// The work of one step.
///
/// Rows of one sequence stand in ascending positions without gaps, and every position
/// before the first row of a sequence is already stored in its blocks.
#[derive(Debug, Clone)]
pub struct Batch<'a> {
    /// Rows to compute, prefill and decode mixed.
    pub rows: &'a [Row],
    /// Block table of each sequence: entry `i` holds positions `16 i .. 16 i + 16`.
    pub tables: &'a [&'a [BlockId]],
}

/// Runs batches: the model, or a stand-in for tests of the scheduler.
pub trait Runner {
    /// Length of one row of logits.
    fn vocab_len(&self) -> usize;

    /// Copies the first `positions` positions of block `from` to block `to`, all layers and heads.
    fn copy_partial(&mut self, from: BlockId, to: BlockId, positions: usize);

    /// Copies the bytes of a block to `bytes`, which has room for exactly those.
    fn read_block(&self, block: BlockId, bytes: &mut [u8]);

    /// Replaces a block by one that was copied with [`Runner::read_block`].
    fn write_block(&mut self, block: BlockId, bytes: &[u8]);

    /// Computes the batch, stores its keys and values, and returns the wanted logits,
    /// shape `[rows with logits, vocab_len]`, in row order.
    fn forward(&mut self, batch: &Batch<'_>) -> &[f32];
}
