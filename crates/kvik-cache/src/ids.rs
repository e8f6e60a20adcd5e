//! Names of things, as types: an index of one kind cannot be used as another.

/// A token id of the model's vocabulary.
pub type Token = u32;

/// Positions in one block.
pub const BLOCK_POSITIONS: usize = 16;

/// A physical block of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

/// What recurrent layers know of the tokens before some position; handed out by the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId(pub u32);

/// A running sequence; chosen by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u64);

/// An interned [`Namespace`](crate::Namespace); valid in the cache that gave it out, until it is dropped there, and never
/// given out again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespaceId(pub(crate) u32);

/// Who a prefix belongs to, for quotas and fair shares; chosen by the caller. 0 where there are no tenants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct TenantId(pub u32);

/// A pin; valid in the cache that gave it out, and never given out again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PinId(pub u64);

/// Names a node of the prefix tree outside of the cache: its place, and how many nodes had that place before. So the
/// name of a node that is gone never means another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeName {
    /// Where it stands among all nodes.
    pub place: u32,
    /// Nodes that stood there before it.
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
