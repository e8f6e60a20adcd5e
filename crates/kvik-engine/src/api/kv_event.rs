//! What becomes known in the cache and what leaves it, told to somebody outside.

use kvik_cache::{Identity, Token};

/// Something that happened to the blocks of an engine.
///
/// Who repeats all events on an empty set of names has, after each step, those of the whole blocks that the engine has in
/// memory, as far as they may be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvEvent {
    /// Blocks are known from now on.
    Stored(KvStored),
    /// These are gone.
    Removed(Vec<Identity>),
    /// All are gone.
    Cleared,
}

/// Blocks of [`BLOCK_POSITIONS`](kvik_cache::BLOCK_POSITIONS) tokens that follow each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvStored {
    /// The block before the first one, which is told; none at the beginning of a prompt.
    pub parent: Option<Identity>,
    /// Their names.
    pub blocks: Vec<Identity>,
    /// What they hold.
    pub tokens: Vec<Token>,
    /// The adapters they are computed with: the digest of the mix.
    pub adapter: Option<[u8; 32]>,
}

/// Who is told.
pub struct KvListener {
    /// Of whose prompts: those with these salts. Others' are their secret, and so is when they are computed.
    pub salts: Vec<[u8; 16]>,
    /// Takes what happened in a step, when something did, on the engine's thread: it must be quick, and not panic.
    pub sink: Box<dyn FnMut(Vec<KvEvent>) + Send>,
}
