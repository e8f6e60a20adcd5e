//! The fixed array of physical blocks and who holds each of them.
//!
//! Owns the state of every block: *free*, *owned* by one running sequence, or *shared* (in the
//! tree, immutable). Never evicts and never knows what a block contains.
//!
//! ```text
//!         take           share
//!   free ------> owned --------> shared
//!    ^             |               |
//!    +-------------+---------------+   release
//! ```
//!
//! Invariant: free + owned + shared = all, and a block is on the free list exactly when it is free.

use crate::ids::BlockId;

/// Who holds a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockState {
    Free,
    Owned,
    Shared,
}

/// All blocks there are.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Shape `[blocks]`.
    states: Vec<BlockState>,
    /// Free blocks, the next one to hand out last: what was used last is used again first,
    /// so that memory never needed is never touched.
    free: Vec<BlockId>,
    shared: usize,
}

impl Pool {
    /// A pool of `blocks` free blocks.
    pub(crate) fn new(blocks: u32) -> Pool {
        Pool {
            states: vec![BlockState::Free; blocks as usize],
            free: (0..blocks).rev().map(BlockId).collect(),
            shared: 0,
        }
    }

    /// Hands out a free block to be owned.
    pub(crate) fn take(&mut self) -> BlockId {
        let block = self.free.pop().expect("room was made before blocks are taken");
        assert_eq!(self.states[block.index()], BlockState::Free, "{block:?} is on the free list");
        self.states[block.index()] = BlockState::Owned;
        block
    }

    /// Passes a block from its owner to the tree.
    pub(crate) fn share(&mut self, block: BlockId) {
        assert_eq!(self.states[block.index()], BlockState::Owned, "{block:?} is passed to the tree");
        self.states[block.index()] = BlockState::Shared;
        self.shared += 1;
    }

    /// Takes back a block that its owner or the tree gives up.
    pub(crate) fn release(&mut self, block: BlockId) {
        match self.states[block.index()] {
            BlockState::Free => panic!("{block:?} is released twice"),
            BlockState::Owned => {}
            BlockState::Shared => self.shared -= 1,
        }
        self.states[block.index()] = BlockState::Free;
        self.free.push(block);
    }

    pub(crate) fn len(&self) -> usize {
        self.states.len()
    }

    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    pub(crate) fn shared(&self) -> usize {
        self.shared
    }

    pub(crate) fn owned(&self) -> usize {
        self.len() - self.free() - self.shared()
    }

    pub(crate) fn state(&self, block: BlockId) -> BlockState {
        self.states[block.index()]
    }

    /// The free list, for the checker.
    pub(crate) fn free_list(&self) -> &[BlockId] {
        &self.free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_goes_round() {
        let mut pool = Pool::new(2);
        let block = pool.take();
        assert_eq!((pool.free(), pool.owned(), pool.shared()), (1, 1, 0));
        pool.share(block);
        assert_eq!((pool.free(), pool.owned(), pool.shared()), (1, 0, 1));
        pool.release(block);
        assert_eq!((pool.free(), pool.owned(), pool.shared()), (2, 0, 0));
        assert_eq!(pool.take(), block, "what was used last is used again first");
    }
}
