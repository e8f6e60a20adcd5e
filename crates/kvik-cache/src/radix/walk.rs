//! Matching a prompt against the tree: queries that change nothing.
//!
//! A walk compares the tokens of whole runs at once, block after block in memory order, and takes
//! one binary search at the end of each run.

use super::Radix;
use crate::hash::Fingerprint;
use crate::ids::{BLOCK_POSITIONS, BlockId, NodeId, Token};

/// How far the tree knows a prompt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Walk {
    /// The deepest node of which a whole block matches; the root when there is none.
    pub(crate) node: NodeId,
    /// Whole blocks of `node` that match.
    pub(crate) blocks: usize,
    /// The block after them, when the valid head of one matches.
    pub(crate) head: Option<Head>,
    /// Tokens that match, the head's included.
    pub(crate) tokens: usize,
}

/// The leading positions of a block that match.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    pub(crate) node: NodeId,
    /// Which block of `node`.
    pub(crate) index: usize,
    /// Positions of it that match, 1 to 15, or fewer than its valid ones.
    pub(crate) positions: usize,
}

impl Walk {
    /// Whole blocks that match.
    pub(crate) fn whole_blocks(&self) -> usize {
        self.tokens / BLOCK_POSITIONS
    }
}

impl Radix {
    /// Follows `prompt` from a namespace's root as far as it is known.
    pub(crate) fn walk(&self, root: NodeId, prompt: &[Token]) -> Walk {
        let mut walk = Walk { node: root, blocks: 0, head: None, tokens: 0 };
        while let Some((child, common)) = self.closest_child(walk.node, &prompt[walk.tokens..]) {
            let blocks = common / BLOCK_POSITIONS;
            let positions = common % BLOCK_POSITIONS;
            walk.tokens += common;
            if blocks > 0 {
                (walk.node, walk.blocks) = (child, blocks);
            }
            if positions > 0 {
                walk.head = Some(Head { node: child, index: blocks, positions });
            }
            if positions > 0 || blocks < self.arena[child].blocks.len() {
                break;
            }
        }
        walk
    }

    /// The child of `at` that shares the longest head with `rest`, and how many tokens it shares;
    /// none when no child shares even one.
    ///
    /// Children are sorted, so the longest shared head is at one side of the place where `rest`
    /// would stand. Of two equal ones the later is taken.
    pub(crate) fn closest_child(&self, at: NodeId, rest: &[Token]) -> Option<(NodeId, usize)> {
        let first = &rest[..rest.len().min(BLOCK_POSITIONS)];
        let children = &self.arena[at].children;
        let place = self.child_place(at, first);
        let shared = |index: usize| {
            children.get(index).map_or(0, |&child| common_head(self.arena[child].first_block(), first))
        };
        let (before, after) = (place.checked_sub(1).map_or(0, shared), shared(place));
        let index = if before > after { place - 1 } else { place };
        if before.max(after) == 0 {
            return None;
        }
        let child = children[index];
        Some((child, common_head(&self.arena[child].tokens, rest)))
    }

    /// Where among the children of `at` one stands, or would stand, whose first block is `first`.
    pub(crate) fn child_place(&self, at: NodeId, first: &[Token]) -> usize {
        self.arena[at].children.partition_point(|&child| self.arena[child].first_block() < first)
    }

    /// Whether the tree goes on beyond the end of a walk that has not used up its prompt.
    pub(crate) fn goes_on(&self, walk: &Walk) -> bool {
        match walk.head {
            Some(head) => head.positions < self.arena[head.node].block_tokens(head.index).len(),
            None => {
                let node = &self.arena[walk.node];
                walk.blocks < node.blocks.len() || !node.children.is_empty()
            }
        }
    }

    /// Fingerprint of the last whole block of a walk.
    pub(crate) fn fingerprint_at(&self, walk: &Walk) -> Fingerprint {
        self.arena[walk.node].fingerprint_before(walk.blocks)
    }

    /// Nodes from `node` up to, and without, the root.
    pub(crate) fn path_up(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        std::iter::successors(Some(node), |&id| self.arena[id].parent).filter(|&id| !self.arena[id].is_root())
    }

    /// Blocks on the path of a walk that nobody uses, and that a lease on it would lock.
    pub(crate) fn unlocked_blocks(&self, walk: &Walk) -> usize {
        let unlocked = self.path_up(walk.node).filter(|&id| self.arena[id].locks == 0);
        unlocked.map(|id| if id == walk.node { walk.blocks } else { self.arena[id].blocks.len() }).sum()
    }

    /// Physical blocks of the whole-block part of a walk, first block first.
    pub(crate) fn blocks_of(&self, walk: &Walk) -> Vec<BlockId> {
        let mut runs: Vec<&[BlockId]> =
            self.path_up(walk.node).map(|id| &self.arena[id].blocks[..]).collect();
        if let Some(deepest) = runs.first_mut() {
            *deepest = &deepest[..walk.blocks];
        }
        runs.into_iter().rev().flatten().copied().collect()
    }
}

/// Length of the longest common head of two token runs, a block at a time while they agree.
fn common_head(a: &[Token], b: &[Token]) -> usize {
    let pairs = a.chunks_exact(BLOCK_POSITIONS).zip(b.chunks_exact(BLOCK_POSITIONS));
    let same = pairs.take_while(|(a, b)| a == b).count() * BLOCK_POSITIONS;
    same + a[same..].iter().zip(&b[same..]).take_while(|(a, b)| a == b).count()
}
