//! What a sequence asks of the cache and what it is given: plain data, no behaviour.

use crate::explain::{Eviction, StopReason};
use crate::ids::{BlockId, NamespaceId, SeqId, StateId, Token};
use crate::lifetime::Lifetime;

/// The blocks asked for cannot be had, now. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{needed} KV blocks are needed and {available} can be had while others run")]
pub struct NoSpace {
    /// Blocks asked for.
    pub needed: usize,
    /// Blocks that are free or evictable.
    pub available: usize,
}

/// How much of a prompt is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// Leading tokens that are known, exact to the token.
    pub tokens: usize,
    /// Why it ends there.
    pub stop: StopReason,
    /// How what comes next was evicted; none when it was not.
    pub evicted: Option<Eviction>,
}

/// A sequence that wants to run.
#[derive(Debug, Clone, Copy)]
pub struct Admission<'a> {
    /// Its name, not in use by another.
    pub seq: SeqId,
    /// What it may share with.
    pub namespace: NamespaceId,
    /// Its prompt.
    pub prompt: &'a [Token],
    /// Tokens reused at most. One less than the prompt when its last logits are wanted.
    pub reuse_max: usize,
    /// Positions that its table must hold from the start; the reused ones always fit.
    pub positions: usize,
    /// How long what it leaves is to be kept.
    pub lifetime: Lifetime,
}

/// A sequence that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admitted {
    /// Leading tokens whose keys and values are in its blocks, once `copy` is done.
    pub reused: usize,
    /// To be carried out before the next call into the cache.
    pub copy: Option<CopyPartial>,
    /// To be carried out as well, where layers have a state.
    pub state: Option<CopyState>,
    /// Why no more of the prompt is known; `Complete` also when `reuse_max` is what limits it.
    pub stop: StopReason,
    /// How what comes next was evicted; none when it was not.
    pub evicted: Option<Eviction>,
}

/// Make a state that of another, or the one before the first token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyState {
    /// The state to copy; none for that before the first token.
    pub from: Option<StateId>,
    /// What becomes the same.
    pub to: StateId,
}

/// Copy the windowed part of one block to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyPart {
    /// Where it is.
    pub from: BlockId,
    /// The block that gets it.
    pub to: BlockId,
}

/// What a fork begins with, to be carried out before the next call into the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Forked {
    /// The positions of the last block, when it is not full.
    pub copy: Option<CopyPartial>,
    /// The state, where layers have one.
    pub state: Option<CopyState>,
}

/// What changed beside blocks, to be carried out before anything is computed: the copies first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// States of sequences that had none: they are to be those before the first token.
    pub fresh: Vec<StateId>,
    /// Windowed parts to copy.
    pub copies: Vec<CopyPart>,
    /// Blocks whose windowed part nobody uses any more.
    pub parts: Vec<BlockId>,
    /// Blocks that nobody uses any more.
    pub blocks: Vec<BlockId>,
    /// States that nobody uses any more.
    pub states: Vec<StateId>,
}

/// Copy the first `positions` positions of one block to another, all layers and heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyPartial {
    /// Where they are.
    pub from: BlockId,
    /// A block of the sequence that gets them.
    pub to: BlockId,
    /// How many, 1 to 15.
    pub positions: usize,
}
