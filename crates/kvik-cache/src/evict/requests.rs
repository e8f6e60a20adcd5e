//! Requests as the evictor sees them: the uses of their blocks, one by one, the deepest first.

use crate::hash::Fingerprint;

/// The use of a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Use {
    pub(crate) block: Fingerprint,
    /// Blocks before it.
    pub(crate) depth: u32,
    /// When, on the clock of blocks used.
    pub(crate) at: u64,
}

/// A request that has ended, or that is ending.
#[derive(Debug, Default)]
pub(crate) struct Request {
    /// The uses of its blocks, the deepest first.
    pub(crate) uses: Vec<Use>,
}

impl Request {
    /// Adds a use. The first block of a prompt completes the request, which is returned, and another begins.
    pub(crate) fn note(&mut self, used: Use) -> Option<Request> {
        self.uses.push(used);
        (used.depth == 0).then(|| std::mem::take(self))
    }
}
