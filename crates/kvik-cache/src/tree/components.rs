//! What a node holds of its prefix, a component each, and the places where a component needs treatment.
//!
//! ```text
//! place   blocks: keys and values of a run     state: a checkpoint at the node's end
//! cut     the first blocks go to the upper     stays with the lower node, whose end is where it was taken
//! grow    the run gets longer                  a node with a state does not grow: its end would move
//! evict   the last blocks are dropped          dropped with the last block
//! match   every whole block that agrees        only at the end of a node that has one
//! ```
//!
//! Models whose every layer keeps all keys and values need blocks alone. Layers with a sliding window or a
//! recurrent state need a checkpoint beside them to continue a prefix; [`Needs`] says so for a tree. A further
//! component is a field of [`Components`] and a column of this table.

use crate::ids::{BlockId, StateId};
use crate::pool::Pool;

/// What a node holds.
#[derive(Debug, Default)]
pub(crate) struct Components {
    /// The physical blocks of the run, in order; empty for a root.
    blocks: Vec<BlockId>,
    /// The checkpoint after the last of them.
    state: Option<StateId>,
}

/// What must be available where a match ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Needs {
    /// A checkpoint of state, beside the blocks.
    pub(crate) state: bool,
}

impl Needs {
    /// Keys and values, of all positions.
    pub(crate) const BLOCKS: Needs = Needs { state: false };
}

impl Components {
    /// A run of blocks without a state.
    pub(crate) fn of(blocks: Vec<BlockId>) -> Components {
        Components { blocks, state: None }
    }

    #[inline]
    pub(crate) fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// *Cut*: takes the components of the first `blocks` blocks out.
    pub(crate) fn cut(&mut self, blocks: usize) -> Components {
        let rest = self.blocks.split_off(blocks);
        Components::of(std::mem::replace(&mut self.blocks, rest))
    }

    /// *Grow*: whether blocks may follow in the same node.
    pub(crate) fn can_grow(&self) -> bool {
        self.state.is_none()
    }

    /// *Grow*: adds blocks at the end.
    pub(crate) fn grow(&mut self, blocks: &[BlockId]) {
        assert!(self.can_grow(), "the end of a node with a state does not move");
        self.blocks.extend_from_slice(blocks);
    }

    /// *Evict*: takes the components of the last `count` blocks out.
    pub(crate) fn evict(&mut self, count: usize) -> Components {
        let kept = self.blocks.len() - count;
        let state = if count > 0 { self.state.take() } else { None };
        Components { blocks: self.blocks.split_off(kept), state }
    }

    /// *Evict*: releases what was taken out, the last block first.
    pub(crate) fn release(self, pool: &mut Pool) {
        // No command attaches a state so far; the keeper of one learns here that it is free.
        debug_assert!(self.state.is_none(), "a dropped state has a keeper");
        self.blocks.into_iter().rev().for_each(|block| pool.release(block));
    }

    /// *Match*: whether a sequence can continue after the first `blocks` blocks.
    pub(crate) fn can_continue(&self, blocks: usize, needs: Needs) -> bool {
        !needs.state || (blocks == self.blocks.len() && self.state.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evict::{Cause, Policy};
    use crate::hash::Fingerprint;
    use crate::ids::{BLOCK_POSITIONS, NamespaceId, NodeId, Token};
    use crate::tree::Radix;

    const STATE: StateId = StateId(7);

    fn prompt(blocks: usize) -> Vec<Token> {
        (0..).take(blocks * BLOCK_POSITIONS).collect()
    }

    /// A tree that needs state, with one locked new node of 6 blocks that ends in one.
    fn leased() -> (Radix, NodeId, NodeId) {
        let mut radix = Radix::new(16, Policy::Lru, 16);
        radix.needs = Needs { state: true };
        let root = radix.add_root(NamespaceId(0), Fingerprint::UNUSED);
        radix.lock(root);
        let blocks: Vec<BlockId> = (0..6).map(BlockId).collect();
        let node = radix.grow(root, &prompt(6), &blocks);
        radix.arena[node].components.state = Some(STATE);
        (radix, root, node)
    }

    /// The same with nobody using the node.
    fn tree() -> (Radix, NodeId, NodeId) {
        let (mut radix, root, node) = leased();
        radix.unlock_path(node);
        (radix, root, node)
    }

    /// Whole blocks after which a prompt of `blocks` blocks can continue.
    fn matched(radix: &Radix, root: NodeId, blocks: usize) -> usize {
        let walk = radix.continuable(radix.walk(root, &prompt(blocks)));
        assert_eq!(radix.blocks_of(&walk).len(), walk.whole_blocks());
        walk.whole_blocks()
    }

    #[test]
    fn a_cut_keeps_the_state_at_the_end() {
        let (mut radix, _, node) = tree();
        let upper = radix.cut(node, 2);
        assert_eq!(radix.arena[upper].components.state, None);
        assert_eq!(radix.arena[node].components.state, Some(STATE));
        assert_eq!(radix.arena[node].components.blocks(), [2, 3, 4, 5].map(BlockId));
    }

    #[test]
    fn an_eviction_of_the_last_blocks_drops_the_state() {
        let (mut radix, root, node) = tree();
        let upper = radix.cut(node, 2);
        let dropped = radix.evict(node, 1, Cause::Evicted(Policy::Lru));
        assert_eq!((dropped.state, dropped.blocks()), (Some(STATE), &[BlockId(5)][..]));
        assert_eq!(matched(&radix, root, 6), 0, "no state is left");
        let dropped = radix.evict(node, 3, Cause::Evicted(Policy::Lru));
        assert_eq!((dropped.state, dropped.blocks()), (None, &[2, 3, 4].map(BlockId)[..]));
        radix.arena[upper].components.state = Some(STATE);
        assert_eq!(radix.evict(upper, 2, Cause::Expired).state, Some(STATE), "with the node");
    }

    #[test]
    fn a_match_that_needs_state_ends_where_there_is_one() {
        let (mut radix, root, node) = tree();
        assert_eq!(matched(&radix, root, 6), 6);
        assert_eq!(matched(&radix, root, 5), 0, "the state is behind the sixth block");
        let upper = radix.cut(node, 2);
        assert_eq!(matched(&radix, root, 5), 0);
        radix.arena[upper].components.state = Some(StateId(8));
        assert_eq!((matched(&radix, root, 5), matched(&radix, root, 6)), (2, 6), "the deepest that matches");
        radix.needs = Needs::BLOCKS;
        assert_eq!(matched(&radix, root, 5), 5);
    }

    #[test]
    fn a_node_with_a_state_does_not_grow() {
        let (mut radix, _, node) = leased();
        let next: Vec<Token> = (900..900 + BLOCK_POSITIONS as Token).collect();
        let end = radix.grow(node, &next, &[BlockId(6)]);
        assert_ne!(end, node);
        assert_eq!(radix.arena[node].components.state, Some(STATE));
    }
}
