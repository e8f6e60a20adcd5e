//! Ids as types: an index of one kind cannot be used as another.

/// A token id of the model's vocabulary.
pub type Token = u32;

/// Positions in one block.
pub const BLOCK_POSITIONS: usize = 16;

/// A physical block of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

/// A recurrent state, which summarises the tokens before some position; assigned by the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId(pub u32);

/// A running sequence; chosen by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u64);

/// An interned [`Namespace`](crate::Namespace); valid in the cache that assigned it, until it is dropped there, and
/// never assigned again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespaceId(pub(crate) u32);

/// The owner of a prefix, for quotas and fair shares; chosen by the caller. 0 where there are no tenants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct TenantId(pub u32);

/// A pin; valid in the cache that assigned it, and never assigned again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PinId(pub u64);

/// The external name of a node of the prefix tree: its arena index, and how many nodes had that index before. So
/// the name of a node that is gone never refers to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeName {
    /// Arena index.
    pub place: u32,
    /// Number of earlier nodes at the same index.
    pub generation: u32,
}

/// A node of the prefix tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeId(pub(crate) u32);

impl BlockId {
    /// The block's index in arrays with one entry per block.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl NodeId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// The whole blocks of `tokens`.
pub fn whole_blocks(tokens: &[Token]) -> &[Token] {
    &tokens[..tokens.len() - tokens.len() % BLOCK_POSITIONS]
}

/// Blocks that hold `positions` positions.
pub fn blocks_for(positions: usize) -> usize {
    positions.div_ceil(BLOCK_POSITIONS)
}
