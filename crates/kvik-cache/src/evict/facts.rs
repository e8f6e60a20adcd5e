//! The facts of a leaf that a policy knows.

use super::rhythm::Rhythm;

/// The facts of a leaf that a policy knows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    /// When its last user left, on the tree's clock of blocks used.
    pub(crate) used: u64,
    /// The same in milliseconds on the caller's clock; the clock of blocks used while the caller sets none.
    pub(crate) used_ms: u64,
    /// When it was published, on the clock of blocks used.
    pub(crate) born: u64,
    /// How often it was reused, as far as is remembered.
    pub(crate) reuses: u32,
    /// Its rhythm at its last use.
    pub(crate) rhythm: Rhythm,
    /// Blocks from the root to its end.
    pub(crate) depth: u32,
    /// Blocks that it holds itself.
    pub(crate) blocks: u32,
}
