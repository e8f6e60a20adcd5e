//! Names of things, as types: an index of one kind cannot be used as another.

/// A token id of the model's vocabulary.
pub type Token = u32;

/// Positions in one block.
pub const BLOCK_POSITIONS: usize = 16;

/// A physical block of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

/// A running sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u64);
