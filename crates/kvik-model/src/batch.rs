//! The input of a step of the model: rows of tokens, and the stored positions of their sequences.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use kvik_cache::retain::{LayerFacts, Needs};
use kvik_cache::{BlockId, SeqId, StateId, Token};
use kvik_kernels::{HeadTail, KvLayout, Pool, SeqKv};

use crate::AdapterMix;
use crate::device_work::{DeviceWork, KernelTime};
use crate::gates::HeadGate;
use crate::pulse::Pulse;

use super::observation::{LayerObservation, Watched};

/// A token of a sequence to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The sequence whose keys and values this row reads and extends, as an index into [`Batch::sequences`].
    pub sequence: u32,
    /// The token.
    pub token: Token,
    /// The position for the RoPE rotation of query and key.
    pub position: u32,
    /// The index of its keys and values among those stored for its sequence, from 0. The row attends to cache positions
    /// `0..=cache_position`, as far as heads still store them. Equals `position` unless positions in between were
    /// dropped and the rest renumbered.
    pub cache_position: u32,
    /// The output needed of this row.
    pub output: Output,
}

/// The output needed of a row in addition to its keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// None.
    None,
    /// Its logits, `[vocab_len]`.
    Logits,
    /// The token with the largest logit, the lowest of equal ones: only for runners that [choose](Runner::chooses).
    Likeliest,
    /// Its hidden state after the output norm, which is the input of the output matrix: `[d_model]`.
    Hidden,
}

impl Output {
    /// Logits if `wanted`, otherwise nothing.
    pub fn logits_if(wanted: bool) -> Output {
        if wanted { Output::Logits } else { Output::None }
    }
}

/// The largest step that a runner is to have room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepSize {
    /// Rows.
    pub rows: usize,
    /// Rows whose logits or likeliest tokens are needed.
    pub outputs: usize,
}

/// The storage of the keys and values of a sequence, its adapters and its state.
#[derive(Debug, Clone, Copy)]
pub struct SequenceKv<'a> {
    /// Block `i` holds cache positions `16 i .. 16 i + 16` of every layer and KV head.
    pub blocks: &'a [BlockId],
    /// Storage of layers outside the blocks, `[layers]`; empty if everything is in the blocks.
    pub tails: &'a [LayerTails<'a>],
    /// The adapters of its rows.
    pub adapters: Option<&'a AdapterMix>,
    /// The recurrent state of the sequence; `None` for models without.
    pub state: Option<SequenceState<'a>>,
    /// The rows that the prediction head needs, if it follows the sequence.
    pub followed: Option<Followed>,
}

/// The rows of a sequence that the prediction head needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Followed {
    /// The sequence.
    pub id: SeqId,
    /// The position of the first of these rows.
    pub from: u32,
}

/// The recurrent state of a sequence.
///
/// No slot is named twice in a batch, neither as a live one nor as a copy.
#[derive(Debug, Clone, Copy)]
pub struct SequenceState<'a> {
    /// The slot whose state the rows continue; after the batch it is the state after the last of them.
    pub live: StateId,
    /// Slots that receive a copy of an intermediate state, ascending by the number of positions it covers: the copy
    /// with `p + 1` positions is the state after the row at cache position `p`, which is one of the batch.
    pub saves: &'a [(u32, StateId)],
    /// The first cache position of a draft row, if there is one; all rows from it on are tentative. The live slot ends
    /// before it, until [`Runner::settle_state`] says how many of them to include.
    pub tentative: Option<u32>,
}

/// The storage of the KV heads of a layer after the first blocks of their sequence.
#[derive(Debug, Clone, Copy)]
pub struct LayerTails<'a> {
    /// Number of the sequence's blocks that the layer uses.
    pub blocks: usize,
    /// The storage after them, `[kv_heads]`; empty if there is none. Tiles are numbered by
    /// [`KvLayout::tile`](kvik_kernels::KvLayout::tile).
    pub heads: &'a [HeadTail<'a>],
}

impl<'a> SequenceKv<'a> {
    /// A sequence that stores everything in blocks, without adapters.
    pub fn in_blocks(blocks: &'a [BlockId]) -> SequenceKv<'a> {
        SequenceKv { blocks, tails: &[], adapters: None, state: None, followed: None }
    }

    /// The storage of one layer in the form that the kernels take; `blocks` are the numbers of the sequence's blocks.
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
/// Rows of a sequence have ascending cache positions without gaps, and every cache position before the first row of a
/// sequence is already stored, unless a head has dropped it. Rows of a sequence with a state are adjacent, and its live
/// slot is the state after the position before the first.
#[derive(Debug, Clone)]
pub struct Batch<'a> {
    /// Rows to compute, prefill and decode mixed.
    pub rows: &'a [Row],
    /// The sequences to which the rows' `sequence` refers.
    pub sequences: &'a [SequenceKv<'a>],
}

impl<'a> Batch<'a> {
    /// The blocks of a row's sequence.
    pub fn blocks(&self, row: &Row) -> &'a [BlockId] {
        self.sequences[row.sequence as usize].blocks
    }

    /// The sequence of a row that the prediction head needs.
    pub fn followed(&self, row: &Row) -> Option<SeqId> {
        let followed = self.sequences[row.sequence as usize].followed?;
        (row.position >= followed.from).then_some(followed.id)
    }
}

/// The result of a batch.
#[derive(Debug, Clone, Copy)]
pub struct Computed<'a> {
    /// As [`Runner::forward`] returns it.
    pub outputs: &'a [f32],
    /// The most likely tokens of the rows that need them, in row order; [`NO_TOKEN`] if no logit is a number above
    /// negative infinity.
    pub likeliest: &'a [Token],
}

/// A value that is not a token.
pub const NO_TOKEN: Token = Token::MAX;

/// A fault after which a runner cannot continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunnerFault {
    /// Description of the fault.
    pub message: String,
    /// Whether the contents of the blocks are lost.
    pub blocks_lost: bool,
}

/// Runs batches: the model, or a stand-in for tests of the scheduler.
pub trait Runner {
    /// Length of one row of logits.
    fn vocab_len(&self) -> usize;

    /// Number of adapters that requests may name.
    fn adapters_len(&self) -> usize {
        0
    }

    /// The threads that it computes on, which may be used between two batches.
    fn threads(&self) -> Option<Arc<Pool>> {
        None
    }

    /// Sets the pulse that it updates during a batch; a batch of a large model takes long.
    fn set_pulse(&mut self, _: Arc<Pulse>) {}

    /// Copies the first `positions` positions of block `from` to block `to`, all layers and heads.
    fn copy_partial(&mut self, from: BlockId, to: BlockId, positions: usize);

    /// Copies the bytes of a block to `bytes`, which has room for exactly those.
    fn read_block(&self, block: BlockId, bytes: &mut [u8]);

    /// Replaces a block, or its first bytes, by bytes read with [`Runner::read_block`].
    fn write_block(&mut self, block: BlockId, bytes: &[u8]);

    /// The bytes of a block that windowed layers use, at its end; empty for models without.
    fn windowed_part(&self) -> Range<usize> {
        0..0
    }

    /// Copies that part of block `from` to block `to`.
    fn copy_windowed(&mut self, _from: BlockId, _to: BlockId) {}

    /// Number of bytes of blocks that steps have copied to the device and back: 0 if blocks stay there.
    fn bytes_moved(&self) -> u64 {
        0
    }

    /// Time spent preparing batches while the device was idle: zero for runners without a device.
    fn preparing(&self) -> Duration {
        Duration::ZERO
    }

    /// The work that its device was given.
    fn work(&self) -> DeviceWork {
        DeviceWork::default()
    }

    /// Begins to time each kernel of its device by itself, which makes steps slower, or ends it. False if there is no
    /// device, or none with a clock.
    fn time_kernels(&mut self, _on: bool) -> bool {
        false
    }

    /// The times of kernels since [`Runner::time_kernels`], the longest first.
    fn kernel_times(&self) -> Vec<KernelTime> {
        Vec::new()
    }

    /// The current fault, until [`Runner::restore`]: data read or written since it occurred is invalid.
    fn fault(&self) -> Option<RunnerFault> {
        None
    }

    /// Recovers from a fault if possible; the blocks are then empty if the fault says so.
    fn restore(&mut self) {}

    /// Returns the memory of a block to the system until it is written again; with `all` false, only that of the part
    /// that windowed layers use.
    fn release_block(&mut self, _: BlockId, _all: bool) {}

    /// Bytes of a state as read and written; 0 for models without.
    fn state_bytes(&self) -> usize {
        0
    }

    /// Makes `to` a copy of the state `from`, or the initial state.
    fn set_state(&mut self, _to: StateId, _from: Option<StateId>) {}

    /// Returns the memory of a slot to the system until it is written again.
    fn release_state(&mut self, _: StateId) {}

    /// Includes tentative rows of the last batch in their state, up to `positions` positions in total, as if they had
    /// been certain; the others are discarded. The next batch of the state, and setting or writing it, discards them
    /// too.
    fn settle_state(&mut self, _live: StateId, _positions: u32) {}

    /// Copies the bytes of a state to `bytes`, which has room for exactly those.
    fn read_state(&self, _: StateId, _bytes: &mut [u8]) {}

    /// Replaces the bytes of a state, as [`Runner::read_state`] copied them, from `start` on; bytes beyond its end are
    /// ignored.
    fn write_state_piece(&mut self, _: StateId, _start: usize, _bytes: &[u8]) {}

    /// Computes the batch, stores its keys and values, observes the rows that are `watched`, which are in the order of
    /// the batch, and returns the logits needed, shape `[rows with logits, vocab_len]`, in row order; then the hidden
    /// states needed, `[rows with hidden states, d_model]`, in row order.
    fn forward(&mut self, batch: &Batch<'_>, watched: &mut [Watched<'_>]) -> &[f32];

    /// True if it chooses the most likely tokens itself, for rows that need nothing else.
    fn chooses(&self) -> bool {
        false
    }

    /// [`Runner::forward`] of a runner that may fail, or chooses tokens.
    ///
    /// # Errors
    /// The fault after which it cannot continue; nothing of the batch is valid then.
    fn compute(
        &mut self,
        batch: &Batch<'_>,
        watched: &mut [Watched<'_>],
    ) -> Result<Computed<'_>, RunnerFault> {
        Ok(Computed { outputs: self.forward(batch, watched), likeliest: &[] })
    }

    /// The prediction head of the model; `None` if it has none.
    fn head(&mut self) -> Option<&mut dyn PredictionHead> {
        None
    }

    /// The interface for retention policies; `None` if it does not support them.
    fn retainer(&mut self) -> Option<&mut dyn Retainer> {
        None
    }
}

/// The last rows of a prompt that a prediction head needs; earlier ones are not worth computing the last layer for.
pub const HEAD_PROMPT_ROWS: usize = 128;

/// The prediction head of a model: continues sequences by guesses, from the hidden states of their rows.
///
/// It holds something of each sequence whose rows it was [given](SequenceKv::followed), until the sequence ends.
pub trait PredictionHead {
    /// Number of sequences that it follows at a time.
    fn sequences_max(&self) -> usize;

    /// The tokens that it holds likeliest after each of `wanted`, in order, at most as many as are wanted; none of a
    /// sequence whose last computed row it was not given.
    fn predict(&mut self, wanted: &[WantedTokens<'_>]) -> Vec<Vec<Token>>;

    /// Drops what it holds of sequences for which `running` is false.
    fn follow_only(&mut self, running: &dyn Fn(SeqId) -> bool);
}

/// A sequence for which a prediction head guesses.
#[derive(Debug, Clone, Copy)]
pub struct WantedTokens<'a> {
    /// The sequence.
    pub id: SeqId,
    /// Its tokens, all but the last of which are computed.
    pub tokens: &'a [Token],
    /// Maximum number of tokens to guess, at least 1.
    pub most: usize,
}

/// Reads and moves the stored positions of the heads of a sequence.
pub trait Retainer {
    /// The layout of a block.
    fn layout(&self) -> &KvLayout;

    /// The facts about the positions that one layer of a sequence stores.
    fn facts(&mut self, stored: &StoredLayer<'_>, needs: Needs) -> LayerFacts;

    /// Copies stored positions of a layer unchanged to new tiles: for each head, stored position `kept[i]` of `from`
    /// becomes position `i` of the tail that consists of the tiles `to`.
    fn move_positions(&mut self, layer: usize, from: &SequenceKv<'_>, kept: &[&[u32]], to: &[&[u32]]);

    /// Changes the values of retained positions so that attention to them gives what attention to all positions of
    /// `stored` gave for the queries that were observed. `to` holds the positions `kept`, indices of stored ones for each
    /// head; the first `fixed` stay as they are. Nothing changes if nothing can be fitted.
    fn fit_values(
        &mut self,
        _stored: &StoredLayer<'_>,
        _kept: &[&[u32]],
        _fixed: usize,
        _to: &SequenceKv<'_>,
    ) {
    }

    /// The bytes of a block.
    fn bytes(&self, block: BlockId) -> Vec<u8>;

    /// Replaces the bytes of a block; the length is [`KvLayout::block_bytes`].
    fn replace_bytes(&mut self, block: BlockId, bytes: &[u8]);

    /// The first `count` stored keys of every KV head of a layer, which are those of positions `0..count`, before RoPE
    /// rotation: `[kv_heads, count, key_dim]`.
    fn first_keys(&self, layer: usize, kv: &SequenceKv<'_>, count: usize) -> Vec<f32>;

    /// Replaces the first stored keys of KV heads of a layer by `keys`, `[kv_heads, count, key_dim]`, rotated to
    /// positions from `positions` on, `[kv_heads]`; a head without one keeps its keys.
    fn replace_first_keys(
        &mut self,
        layer: usize,
        kv: &SequenceKv<'_>,
        keys: &[f32],
        positions: &[Option<u32>],
    );
}

/// The storage of one layer of a sequence.
#[derive(Debug)]
pub struct StoredLayer<'a> {
    /// The layer.
    pub layer: usize,
    /// Its keys and values.
    pub kv: SequenceKv<'a>,
    /// The positions of the sequence that each KV head stores, `[kv_heads]`, ascending.
    pub positions: Vec<Vec<u32>>,
    /// Number of tokens of the sequence so far.
    pub tokens: usize,
    /// The observations of the layer.
    pub observed: Option<&'a LayerObservation>,
    /// The gates of the layer's KV heads, if the model has gates.
    pub gates: Option<&'a [HeadGate]>,
}
