//! Requests as the evictor sees them: the uses of their blocks, deepest first.

use super::rhythm::Rhythm;
use crate::hash::Fingerprint;

/// The use of a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockUse {
    pub(crate) block: Fingerprint,
    /// Blocks before it.
    pub(crate) depth: u32,
    /// The time of the use, on the clock of blocks used.
    pub(crate) at: u64,
    /// Its rhythm from this use on, which the sample of uses determines.
    pub(crate) rhythm: Rhythm,
}

/// A request that is ending.
#[derive(Debug)]
pub(crate) struct Request {
    /// When it was admitted, in milliseconds (see [`Facts::used_ms`](super::Facts)).
    pub(crate) started_ms: u64,
    /// When it ended, likewise.
    pub(crate) ended_ms: u64,
    /// The uses of its blocks, deepest first.
    pub(crate) uses: Vec<BlockUse>,
}
