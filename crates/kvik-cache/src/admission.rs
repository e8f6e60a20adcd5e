//! The data exchanged when a sequence is admitted: request, result, copies to carry out. No behaviour.

use crate::explain::{Eviction, StopReason};
use crate::ids::{BlockId, NamespaceId, SeqId, StateId, Token};
use crate::lifetime::Lifetime;

/// Error: the requested blocks are neither free nor evictable at the moment. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{needed} KV blocks are needed and {available} can be had while others run")]
pub struct NoSpace {
    /// Requested blocks.
    pub needed: usize,
    /// Blocks that are free or evictable.
    pub available: usize,
}

/// The part of a prompt that is cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// Leading tokens that are cached, exact to the token.
    pub tokens: usize,
    /// Why the match ends there.
    pub stop: StopReason,
    /// How the block after the match was evicted; `None` when it was not.
    pub evicted: Option<Eviction>,
}

/// A sequence to be admitted.
#[derive(Debug, Clone, Copy)]
pub struct Admission<'a> {
    /// Its id, which no other sequence uses.
    pub seq: SeqId,
    /// The namespace whose blocks it may share.
    pub namespace: NamespaceId,
    /// Its prompt.
    pub prompt: &'a [Token],
    /// Maximum number of tokens to reuse. One less than the prompt when the logits of its last token are wanted.
    pub reuse_max: usize,
    /// Positions that its table must hold from the start; the reused ones always fit.
    pub positions: usize,
    /// How long the prefix it leaves in the cache is retained.
    pub lifetime: Lifetime,
}

/// The result of an admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admitted {
    /// Leading tokens whose keys and values are in its blocks, once `copy` is done.
    pub reused: usize,
    /// Copy to be carried out before the next call into the cache.
    pub copy: Option<CopyPartial>,
    /// Copy of the recurrent state, to be carried out as well, where layers have one.
    pub state: Option<CopyState>,
    /// Why no longer prefix is cached; `Complete` also when `reuse_max` is the limit.
    pub stop: StopReason,
    /// How the block after the match was evicted; `None` when it was not.
    pub evicted: Option<Eviction>,
}

/// Copies a recurrent state to another, or sets the other to the initial state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyState {
    /// The state to copy; `None` for the initial state (before the first token).
    pub from: Option<StateId>,
    /// The state that is overwritten.
    pub to: StateId,
}

/// Copies the windowed part of a block to another block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyPart {
    /// Source block.
    pub from: BlockId,
    /// Destination block.
    pub to: BlockId,
}

/// The copies with which a fork begins, to be carried out before the next call into the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Forked {
    /// The positions of the last block, when it is partial.
    pub copy: Option<CopyPartial>,
    /// The recurrent state, where layers have one.
    pub state: Option<CopyState>,
}

/// Changes to windowed parts and states, to be carried out before anything is computed: the copies first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// States newly assigned to sequences: they are to be set to the initial state.
    pub fresh: Vec<StateId>,
    /// Windowed parts to copy.
    pub copies: Vec<CopyPart>,
    /// Blocks whose windowed part is no longer used.
    pub parts: Vec<BlockId>,
    /// Blocks that are no longer used.
    pub blocks: Vec<BlockId>,
    /// States that are no longer used.
    pub states: Vec<StateId>,
}

/// Copies the first `positions` positions of one block to another, in all layers and heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyPartial {
    /// Source block.
    pub from: BlockId,
    /// Destination, a block of the sequence.
    pub to: BlockId,
    /// Number of positions, 1 to 15.
    pub positions: usize,
}
