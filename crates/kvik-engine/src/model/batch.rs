//! What one step asks of the model: rows of tokens, and what their sequences store.

use kvik_cache::{BlockId, Token};
use kvik_kernels::HeadTail;

/// One token of one sequence to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Index into [`Batch::sequences`]: whose keys and values this row reads and extends.
    pub sequence: u32,
    /// The token.
    pub token: Token,
    /// The position by which query and key are rotated.
    pub position: u32,
    /// Where its keys and values are stored among those of its sequence, from 0. The row attends to cache
    /// positions `0..=cache_position`, as far as heads still store them. The same as `position` unless
    /// positions were dropped from between and the rest is counted anew.
    pub cache_position: u32,
    /// Whether the logits of this row are wanted.
    pub logits: bool,
}

/// Where the keys and values of one sequence are stored.
#[derive(Debug, Clone, Copy)]
pub struct SequenceKv<'a> {
    /// Block `i` holds cache positions `16 i .. 16 i + 16` of every layer and KV head.
    pub blocks: &'a [BlockId],
    /// What layers store differently, `[layers]`; or empty where all is in the blocks.
    pub tails: &'a [LayerTails<'a>],
}

/// What the KV heads of one layer store behind the first blocks of their sequence.
#[derive(Debug, Clone, Copy)]
pub struct LayerTails<'a> {
    /// The layer uses so many of the sequence's blocks.
    pub blocks: usize,
    /// What follows them, `[kv_heads]`; or empty where nothing does. Tiles are numbered as
    /// [`KvLayout::tile`](kvik_kernels::KvLayout::tile) says.
    pub heads: &'a [HeadTail<'a>],
}

impl<'a> SequenceKv<'a> {
    /// A sequence that stores everything in blocks.
    pub fn in_blocks(blocks: &'a [BlockId]) -> SequenceKv<'a> {
        SequenceKv { blocks, tails: &[] }
    }
}

/// The work of one step.
///
/// Rows of one sequence stand in ascending cache positions without gaps, and every cache position
/// before the first row of a sequence is already stored, unless a head has dropped it.
#[derive(Debug, Clone)]
pub struct Batch<'a> {
    /// Rows to compute, prefill and decode mixed.
    pub rows: &'a [Row],
    /// What the rows' `sequence` refers to.
    pub sequences: &'a [SequenceKv<'a>],
}

impl<'a> Batch<'a> {
    /// The blocks of a row's sequence.
    pub fn blocks(&self, row: &Row) -> &'a [BlockId] {
        self.sequences[row.sequence as usize].blocks
    }
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
