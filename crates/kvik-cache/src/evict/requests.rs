//! Requests as the evictor sees them: the uses of their blocks, deepest first.

use crate::hash::Fingerprint;

/// The use of a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockUse {
    pub(crate) block: Fingerprint,
    /// Blocks before it.
    pub(crate) depth: u32,
    /// The time of the use, on the clock of blocks used.
    pub(crate) at: u64,
}

/// A request that has ended or is ending.
#[derive(Debug, Default)]
pub(crate) struct Request {
    /// The uses of its blocks, deepest first.
    pub(crate) uses: Vec<BlockUse>,
}

impl Request {
    /// Adds a use. The first block of a prompt completes the request, which is returned, and another begins. A
    /// request that is incomplete when the next begins is dropped.
    pub(crate) fn note(&mut self, used: BlockUse) -> Option<Request> {
        if self.uses.last().is_some_and(|last| last.depth <= used.depth) {
            self.uses.clear();
        }
        self.uses.push(used);
        (used.depth == 0).then(|| std::mem::take(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_ends_with_its_first_block() {
        let mut request = Request::default();
        let mut note = |depth| {
            let block = Fingerprint::UNUSED.child(&[depth]);
            request.note(BlockUse { block, depth, at: 1 }).map(|ended| ended.uses.len())
        };
        assert_eq!([2, 1, 0].map(&mut note), [None, None, Some(3)]);
        assert_eq!([0, 0].map(&mut note), [Some(1), Some(1)]);
        assert_eq!([5, 4, 9, 1, 0].map(&mut note), [None, None, None, None, Some(3)], "5 and 4 have no end");
    }
}
