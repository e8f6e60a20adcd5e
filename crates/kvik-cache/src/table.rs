//! The block table of one running sequence, and its lease on the tree.
//!
//! Owns the list of blocks a sequence uses: first those shared with the tree, which its lease
//! keeps from being evicted, then its own. Never makes room: free blocks are there when it asks.
//!
//! ```text
//! table   [ s0 s1 s2 | o3 o4 o5 ]
//!           shared     owned          block i holds positions 16 i .. 16 i + 16
//!           lease ^                   the node that ends with s2; the root when none is shared
//! ```

use crate::ids::{BLOCK_POSITIONS, BlockId, NodeId, Token, blocks_for};
use crate::lifetime::Lifetime;
use crate::pool::Pool;
use crate::tree::Radix;

/// Block table of a running sequence.
#[derive(Debug)]
pub(crate) struct Table {
    blocks: Vec<BlockId>,
    shared: usize,
    lease: NodeId,
    /// How long what it leaves is to be kept.
    pub(crate) lifetime: Lifetime,
}

/// What a publication did.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Published {
    /// Blocks that passed from the sequence to the tree.
    pub(crate) blocks: usize,
    /// Blocks that were in the tree already, so that the sequence's own were freed.
    pub(crate) duplicates: usize,
}

impl Table {
    /// A table that starts with the `shared` blocks on the path to `lease`, which it locks.
    pub(crate) fn new(shared: Vec<BlockId>, lease: NodeId, lifetime: Lifetime, radix: &mut Radix) -> Table {
        radix.lock_path(lease);
        radix.count_reuse(lease);
        Table { shared: shared.len(), blocks: shared, lease, lifetime }
    }

    pub(crate) fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// The leading blocks that belong to the tree.
    pub(crate) fn shared(&self) -> &[BlockId] {
        &self.blocks[..self.shared]
    }

    /// The blocks after them, which belong to this sequence.
    pub(crate) fn owned(&self) -> &[BlockId] {
        &self.blocks[self.shared..]
    }

    pub(crate) fn lease(&self) -> NodeId {
        self.lease
    }

    /// Blocks to add so that the table holds `positions`.
    pub(crate) fn missing(&self, positions: usize) -> usize {
        blocks_for(positions).saturating_sub(self.blocks.len())
    }

    /// Adds `count` owned blocks.
    pub(crate) fn extend(&mut self, count: usize, pool: &mut Pool) {
        self.blocks.extend((0..count).map(|_| pool.take()));
    }

    /// Moves the blocks that hold `tokens` (from position 0) into the tree, the lease with them.
    ///
    /// A last block that is not full becomes a partial leaf, after which the sequence must end.
    pub(crate) fn publish(&mut self, tokens: &[Token], radix: &mut Radix, pool: &mut Pool) -> Published {
        assert_eq!(self.missing(tokens.len()), 0, "what is published was reserved");
        let mut published = Published::default();
        while let Some(rest) = tokens.get(self.shared * BLOCK_POSITIONS..).filter(|rest| !rest.is_empty()) {
            match radix.closest_child(self.lease, rest) {
                // All the rest is known, maybe as the first tokens of a block.
                Some((child, common)) if common == rest.len() => {
                    published.duplicates += self.share_known(child, blocks_for(common), radix, pool);
                }
                Some((child, common)) if common >= BLOCK_POSITIONS => {
                    published.duplicates += self.share_known(child, common / BLOCK_POSITIONS, radix, pool);
                }
                // The next block extends a partial leaf and replaces it; what was asked for the leaf still holds.
                Some((child, common)) if common == radix.first_block(child).valid().len() => {
                    let asked = radix.arena[child].life.keep;
                    radix.pop(child, 1).release(pool);
                    let next = &rest[..rest.len().min(BLOCK_POSITIONS)];
                    published.blocks += self.publish_new(next, radix, pool);
                    radix.keep_as(self.lease, asked);
                }
                _ => published.blocks += self.publish_new(rest, radix, pool),
            }
        }
        published
    }

    /// Swaps the next `count` owned blocks for the first ones of `child`, which hold the same, and
    /// returns how many they are.
    fn share_known(&mut self, child: NodeId, count: usize, radix: &mut Radix, pool: &mut Pool) -> usize {
        self.lease = radix.cut(child, count);
        radix.lock_reused(self.lease);
        let tree = radix.arena[self.lease].blocks();
        for (own, &shared) in self.blocks[self.shared..].iter_mut().zip(tree) {
            pool.release(std::mem::replace(own, shared));
        }
        self.shared += count;
        count
    }

    /// Moves the blocks that hold `rest` into the tree, and returns how many they are.
    fn publish_new(&mut self, rest: &[Token], radix: &mut Radix, pool: &mut Pool) -> usize {
        let count = blocks_for(rest.len());
        let new = &self.blocks[self.shared..self.shared + count];
        self.lease = radix.grow(self.lease, rest, new);
        new.iter().for_each(|&block| pool.share(block));
        self.shared += count;
        count
    }

    /// Ends the sequence: frees its own blocks and unlocks the shared ones, which are kept from now on at least as it
    /// asked.
    pub(crate) fn release(self, radix: &mut Radix, pool: &mut Pool) {
        self.owned().iter().rev().for_each(|&block| pool.release(block));
        radix.keep(self.lease, self.lifetime);
        radix.note_uses(self.lease);
        radix.unlock_path(self.lease);
    }
}
