//! The fixed array of physical blocks and the holder of each.
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
//! The [auxiliary state](crate::auxiliary) of sequences and places takes the room of free blocks, which are then
//! *withheld*: they remain on the free list, but that many of them are not handed out.
//!
//! Invariant: free + withheld + owned + shared = all, and a block is on the free list exactly when it has no holder.

use crate::ids::BlockId;

/// The kind of holder of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockState {
    Free,
    Owned,
    Shared,
}

/// All blocks.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Shape `[blocks]`.
    states: Vec<BlockState>,
    /// Free blocks, the next one to hand out last: the most recently released is reused first, so that memory never
    /// needed is never touched.
    free: Vec<BlockId>,
    shared: usize,
    /// Number of free blocks that must not be handed out.
    withheld: usize,
    /// Released blocks, if they are listed.
    vacated: Option<Vec<BlockId>>,
}

impl Pool {
    /// A pool of `blocks` free blocks.
    pub(crate) fn new(blocks: u32) -> Pool {
        Pool {
            states: vec![BlockState::Free; blocks as usize],
            free: (0..blocks).rev().map(BlockId).collect(),
            shared: 0,
            withheld: 0,
            vacated: None,
        }
    }

    /// Lists the blocks that are released from now on.
    pub(crate) fn list_vacated(&mut self) {
        self.vacated = Some(Vec::new());
    }

    /// Takes the blocks that were released since the last call and are still free.
    pub(crate) fn take_vacated(&mut self) -> Vec<BlockId> {
        let mut vacated = self.vacated.as_mut().map(std::mem::take).unwrap_or_default();
        vacated.retain(|block| self.states[block.index()] == BlockState::Free);
        vacated
    }

    /// Withholds `blocks` free blocks for auxiliary state.
    pub(crate) fn withhold(&mut self, blocks: usize) {
        assert!(blocks <= self.free(), "room was made before it is withheld");
        self.withheld += blocks;
    }

    /// Ends the withholding of `blocks` blocks.
    pub(crate) fn restore(&mut self, blocks: usize) {
        self.withheld = self.withheld.checked_sub(blocks).expect("it was withheld");
    }

    /// Hands out a free block, which becomes owned.
    pub(crate) fn take(&mut self) -> BlockId {
        assert!(self.free() > 0, "room was made before blocks are taken");
        let block = self.free.pop().expect("it is among the free ones");
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

    /// Frees a block of its owner or of the tree.
    pub(crate) fn release(&mut self, block: BlockId) {
        match self.states[block.index()] {
            BlockState::Free => panic!("{block:?} is released twice"),
            BlockState::Owned => {}
            BlockState::Shared => self.shared -= 1,
        }
        self.states[block.index()] = BlockState::Free;
        self.free.push(block);
        self.vacated.iter_mut().for_each(|vacated| vacated.push(block));
    }

    pub(crate) fn len(&self) -> usize {
        self.states.len()
    }

    /// Blocks that can be handed out.
    pub(crate) fn free(&self) -> usize {
        self.free.len() - self.withheld
    }

    pub(crate) fn withheld(&self) -> usize {
        self.withheld
    }

    pub(crate) fn shared(&self) -> usize {
        self.shared
    }

    pub(crate) fn owned(&self) -> usize {
        self.len() - self.free.len() - self.shared()
    }

    pub(crate) fn state(&self, block: BlockId) -> BlockState {
        self.states[block.index()]
    }

    /// The free blocks, withheld ones included.
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

    #[test]
    fn what_is_withheld_is_not_handed_out() {
        let mut pool = Pool::new(3);
        pool.list_vacated();
        pool.withhold(1);
        let [first, second] = [pool.take(), pool.take()];
        assert_eq!((pool.free(), pool.withheld(), pool.owned()), (0, 1, 2));
        pool.release(first);
        pool.release(second);
        assert_eq!(pool.take(), second);
        assert_eq!((pool.take_vacated(), pool.take_vacated()), (vec![first], vec![]), "one is held again");
        pool.restore(1);
        assert_eq!(pool.free(), 2);
    }
}
