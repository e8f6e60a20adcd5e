//! Cache events for external observers: which blocks become known and which are removed.

use kvik_cache::{Identity, Token};

/// A change of the blocks of an engine.
///
/// An observer that applies all events to an empty set of identities has, after each step, those of the whole blocks
/// that the engine has in memory and may report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvEvent {
    /// Blocks became known.
    Stored(KvStored),
    /// Blocks were removed.
    Removed(Vec<Identity>),
    /// All blocks were removed.
    Cleared,
}

/// Blocks of [`BLOCK_POSITIONS`](kvik_cache::BLOCK_POSITIONS) tokens that follow each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvStored {
    /// The block before the first one, which was reported earlier; `None` at the beginning of a prompt.
    pub parent: Option<Identity>,
    /// Their identities.
    pub blocks: Vec<Identity>,
    /// Their tokens.
    pub tokens: Vec<Token>,
    /// The adapters they are computed with: the digest of the mix.
    pub adapter: Option<[u8; 32]>,
}

/// A receiver of cache events.
pub struct KvListener {
    /// Salts of the prompts whose events are reported. Other tenants' prompts, and the times at which they are
    /// computed, are confidential.
    pub salts: Vec<[u8; 16]>,
    /// Called on the engine's thread with the events of a step, if there are any: it must be quick, and not panic.
    pub sink: Box<dyn FnMut(Vec<KvEvent>) + Send>,
}
