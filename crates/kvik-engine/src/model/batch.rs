//! What one step asks of the model: rows of tokens, and what their sequences store.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use kvik_cache::retain::{LayerFacts, Needs};
use kvik_cache::{BlockId, StateId, Token};
use kvik_kernels::{HeadTail, KvLayout, Pool, SeqKv};

use crate::api::{AdapterMix, RequestError};
use crate::pulse::Pulse;

use super::observation::{LayerObservation, Watched};

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
    /// What is wanted of this row.
    pub output: Output,
}

/// What is wanted of a row besides its keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Nothing.
    None,
    /// Its logits, `[vocab_len]`.
    Logits,
    /// The token of its largest logit, the lowest of equal ones: of runners that [choose](Runner::chooses).
    Likeliest,
    /// Its hidden state after the output norm, which the output matrix would multiply: `[d_model]`.
    Hidden,
}

impl Output {
    /// Logits where they are `wanted`, else nothing.
    pub fn logits_if(wanted: bool) -> Output {
        if wanted { Output::Logits } else { Output::None }
    }
}

/// Where the keys and values of one sequence are stored, and with what they are computed.
#[derive(Debug, Clone, Copy)]
pub struct SequenceKv<'a> {
    /// Block `i` holds cache positions `16 i .. 16 i + 16` of every layer and KV head.
    pub blocks: &'a [BlockId],
    /// What layers store differently, `[layers]`; or empty where all is in the blocks.
    pub tails: &'a [LayerTails<'a>],
    /// The adapters that its rows are computed with.
    pub adapters: Option<&'a AdapterMix>,
    /// Where the recurrent layers of the model keep what they know of the sequence; `None` for models without.
    pub state: Option<SequenceState<'a>>,
}

/// The state of one sequence.
///
/// No slot is named twice in a batch, neither as a live one nor as a copy.
#[derive(Debug, Clone, Copy)]
pub struct SequenceState<'a> {
    /// The slot whose state the rows continue; after the batch it stands behind the last of them.
    pub live: StateId,
    /// Slots that get a copy on the way, ascending by the positions that are in it: the copy with `p + 1` positions is
    /// the state behind the row at cache position `p`, which is one of the batch.
    pub saves: &'a [(u32, StateId)],
    /// The first cache position whose row is not certain, if one is not: from it on rows are only tried. The live slot
    /// ends before it, until [`Runner::settle_state`] says how many of them are to be in it.
    pub tentative: Option<u32>,
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
    /// A sequence that stores everything in blocks, of the model alone.
    pub fn in_blocks(blocks: &'a [BlockId]) -> SequenceKv<'a> {
        SequenceKv { blocks, tails: &[], adapters: None, state: None }
    }

    /// What one layer stores, in the form the kernels want; `blocks` are the numbers of the sequence's blocks.
    pub(super) fn layer<'b>(&self, layer: usize, blocks: &'b [u32]) -> SeqKv<'b>
    where
        'a: 'b,
    {
        match self.tails.get(layer) {
            Some(tails) => SeqKv { blocks: &blocks[..tails.blocks], tails: tails.heads },
            None => SeqKv { blocks, tails: &[] },
        }
    }
}

/// The work of one step.
///
/// Rows of one sequence stand in ascending cache positions without gaps, and every cache position
/// before the first row of a sequence is already stored, unless a head has dropped it. Rows of a sequence with a state
/// stand side by side, and its live slot stands behind the position before the first.
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

impl From<RunnerFault> for RequestError {
    fn from(fault: RunnerFault) -> RequestError {
        RequestError::Device(fault.message)
    }
}

/// What a batch gave.
#[derive(Debug, Clone, Copy)]
pub struct Computed<'a> {
    /// As [`Runner::forward`] returns it.
    pub outputs: &'a [f32],
    /// The tokens of the rows of which the likeliest is wanted, in row order; [`NO_TOKEN`] where no logit is a number above
    /// negative infinity.
    pub likeliest: &'a [Token],
}

/// What is not a token.
pub const NO_TOKEN: Token = Token::MAX;

/// What a runner cannot go on with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunnerFault {
    /// What happened, in words.
    pub message: String,
    /// Whether what blocks held is lost with it.
    pub blocks_lost: bool,
}

/// Runs batches: the model, or a stand-in for tests of the scheduler.
pub trait Runner {
    /// Length of one row of logits.
    fn vocab_len(&self) -> usize;

    /// How many adapters requests may name.
    fn adapters_len(&self) -> usize {
        0
    }

    /// The threads that it computes on, which may be used between two batches.
    fn threads(&self) -> Option<Arc<Pool>> {
        None
    }

    /// Whom it tells, from now on, that a batch goes on; one batch of a large model takes long.
    fn set_pulse(&mut self, _: Arc<Pulse>) {}

    /// Copies the first `positions` positions of block `from` to block `to`, all layers and heads.
    fn copy_partial(&mut self, from: BlockId, to: BlockId, positions: usize);

    /// Copies the bytes of a block to `bytes`, which has room for exactly those.
    fn read_block(&self, block: BlockId, bytes: &mut [u8]);

    /// Replaces a block by one that was copied with [`Runner::read_block`], or its first bytes by those.
    fn write_block(&mut self, block: BlockId, bytes: &[u8]);

    /// The bytes of a block that layers with windows see, the last ones; empty for models without.
    fn windowed_part(&self) -> Range<usize> {
        0..0
    }

    /// Copies that part of block `from` to block `to`.
    fn copy_windowed(&mut self, _from: BlockId, _to: BlockId) {}

    /// Bytes of blocks that steps have copied to where they are computed, and back: none where they stay there.
    fn bytes_moved(&self) -> u64 {
        0
    }

    /// Time in which it has prepared batches while their device had nothing to do: none where they are computed at once.
    fn preparing(&self) -> Duration {
        Duration::ZERO
    }

    /// What is wrong with it, until [`Runner::restore`]: what was read or written since then is not to be used.
    fn fault(&self) -> Option<RunnerFault> {
        None
    }

    /// Has it go on after a fault, if it can; its blocks hold nothing then if the fault says so.
    fn restore(&mut self) {}

    /// Gives the memory of a block back to the system until it is written again; with `all` false only that of the
    /// part that layers with windows see.
    fn release_block(&mut self, _: BlockId, _all: bool) {}

    /// Bytes of one state, as they are read and written; 0 for models without.
    fn state_bytes(&self) -> usize {
        0
    }

    /// Makes `to` the state of `from`, or the state before the first token.
    fn set_state(&mut self, _to: StateId, _from: Option<StateId>) {}

    /// Gives the memory of a slot back to the system until it is written again.
    fn release_state(&mut self, _: StateId) {}

    /// Takes rows that were only tried in the last batch into the state that they were tried on, up to `positions`
    /// positions in all, as if they had been certain; the others are forgotten. So they are by the next batch of the
    /// state, and where it is set or written.
    fn settle_state(&mut self, _live: StateId, _positions: u32) {}

    /// Copies the bytes of a state to `bytes`, which has room for exactly those.
    fn read_state(&self, _: StateId, _bytes: &mut [u8]) {}

    /// Replaces a state by one that was copied with [`Runner::read_state`].
    fn write_state(&mut self, _: StateId, _bytes: &[u8]) {}

    /// Replaces the bytes of a state from `start` on; what goes beyond its end is left out.
    fn write_state_piece(&mut self, _: StateId, _start: usize, _bytes: &[u8]) {}

    /// Computes the batch, stores its keys and values, observes the rows that are `watched`, which are in the
    /// order of the batch, and returns the wanted logits, shape `[rows with logits, vocab_len]`, in row order; then
    /// the wanted hidden states, `[rows with hidden states, d_model]`, in row order.
    fn forward(&mut self, batch: &Batch<'_>, watched: &mut [Watched<'_>]) -> &[f32];

    /// Whether it chooses the likeliest tokens of rows itself, where nothing else is wanted of them.
    fn chooses(&self) -> bool {
        false
    }

    /// [`Runner::forward`] of a runner that may fail, or chooses tokens.
    ///
    /// # Errors
    /// What it cannot go on with; then nothing of the batch is to be used.
    fn compute(
        &mut self,
        batch: &Batch<'_>,
        watched: &mut [Watched<'_>],
    ) -> Result<Computed<'_>, RunnerFault> {
        Ok(Computed { outputs: self.forward(batch, watched), likeliest: &[] })
    }

    /// What it does for sequences that forget; `None` if its sequences never do.
    fn retainer(&mut self) -> Option<&mut dyn Retainer> {
        None
    }
}

/// Knows and moves what the heads of a sequence store.
pub trait Retainer {
    /// What a block stores.
    fn layout(&self) -> &KvLayout;

    /// What is known of the positions that one layer of a sequence stores.
    fn facts(&mut self, stored: &StoredLayer<'_>, needs: Needs) -> LayerFacts;

    /// Stores positions of a layer elsewhere, as they are: head by head, stored position `kept[i]` of `from`
    /// becomes number `i` of the tail that consists of the tiles `to`.
    fn move_positions(&mut self, layer: usize, from: &SequenceKv<'_>, kept: &[&[u32]], to: &[&[u32]]);

    /// The bytes of a block.
    fn bytes(&self, block: BlockId) -> Vec<u8>;

    /// Replaces the bytes of a block: as many as [`KvLayout::block_bytes`].
    fn replace_bytes(&mut self, block: BlockId, bytes: &[u8]);

    /// The first `count` stored keys of every KV head of a layer, which are those of positions `0..count`, as they
    /// were before rotation: `[kv_heads, count, key_dim]`.
    fn first_keys(&self, layer: usize, kv: &SequenceKv<'_>, count: usize) -> Vec<f32>;

    /// Replaces the first stored keys of every KV head of a layer by `keys`, `[kv_heads, count, key_dim]`,
    /// rotated to positions from `position` on.
    fn replace_first_keys(&mut self, layer: usize, kv: &SequenceKv<'_>, keys: &[f32], position: u32);
}

/// What one layer of a sequence stores.
#[derive(Debug)]
pub struct StoredLayer<'a> {
    /// The layer.
    pub layer: usize,
    /// Where.
    pub kv: SequenceKv<'a>,
    /// Which positions of the sequence each KV head stores, `[kv_heads]`, ascending.
    pub positions: Vec<Vec<u32>>,
    /// Tokens of the sequence so far.
    pub tokens: usize,
    /// What was observed.
    pub observed: Option<&'a LayerObservation>,
}
