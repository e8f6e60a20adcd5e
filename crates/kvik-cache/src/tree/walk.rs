//! Matching of a prompt against the tree: pure queries.
//!
//! A walk compares tokens block by block along a run, and takes one binary search at the end of each run.

use std::iter::successors;

use super::labels::{BlockTokens, common_prefix};
use super::radix::Radix;
use crate::hash::Fingerprint;
use crate::ids::{BLOCK_POSITIONS, BlockId, NodeId, Token};

/// The part of a prompt that the tree contains.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Walk {
    /// The deepest node of which a whole block matches; the root when there is none.
    pub(crate) node: NodeId,
    /// Whole blocks of `node` that match.
    pub(crate) blocks: usize,
    /// The block after them, when only its first tokens match.
    pub(crate) partial: Option<PartialMatch>,
    /// Tokens that match, including those of the partial block.
    pub(crate) tokens: usize,
}

/// A block of which only the first positions match.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartialMatch {
    pub(crate) node: NodeId,
    /// Index of the block in `node`.
    pub(crate) index: usize,
    /// Its matching positions, 1 to 15.
    pub(crate) positions: usize,
}

impl Walk {
    /// Whole blocks that match, from the root on.
    pub(crate) fn whole_blocks(&self) -> usize {
        self.tokens / BLOCK_POSITIONS
    }
}

impl Radix {
    /// Follows `prompt` from a namespace's root as far as it is cached. The root of a derived namespace follows its
    /// base; a prompt that does not begin with the base matches nothing.
    pub(crate) fn walk(&self, root: NodeId, prompt: &[Token]) -> Walk {
        let base = self.base(root);
        let mut walk = Walk { node: root, blocks: 0, partial: None, tokens: base.len() };
        if !prompt.starts_with(&base) {
            return Walk { tokens: 0, ..walk };
        }
        while let Some((child, common)) = self.closest_child(walk.node, &prompt[walk.tokens..]) {
            let (blocks, positions) = (common / BLOCK_POSITIONS, common % BLOCK_POSITIONS);
            walk.tokens += common;
            if blocks > 0 {
                (walk.node, walk.blocks) = (child, blocks);
            }
            if positions > 0 {
                walk.partial = Some(PartialMatch { node: child, index: blocks, positions });
            }
            if blocks < self.arena[child].blocks().len() {
                break;
            }
        }
        walk
    }

    /// The part of a walk after which a sequence can resume: the longest at whose end all auxiliary state that
    /// layers need exists. It is never shorter than the base of a derived namespace, whose end is protected.
    pub(crate) fn continuable(&self, walk: Walk) -> Walk {
        if self.places.needs().is_nothing() || walk.tokens == 0 {
            return walk;
        }
        let usable = self.places.usable(&self.touched_blocks(&walk), walk.tokens);
        self.shorten(walk, usable)
    }

    /// The first `tokens` of a walk, or the base of its namespace if that is more.
    pub(crate) fn shorten(&self, walk: Walk, tokens: usize) -> Walk {
        let mut path: Vec<NodeId> = self.own_path(walk.node).collect();
        let deepest = path.first().copied().unwrap_or(walk.node);
        let root = path
            .last()
            .map_or(walk.node, |&first| self.arena[first].parent.expect("only a root has no parent"));
        let base = self.arena[root].depth as usize * BLOCK_POSITIONS;
        let tokens = tokens.max(base);
        if tokens >= walk.tokens {
            return walk;
        }
        path.insert(0, walk.partial.map_or(deepest, |partial| partial.node));
        path.push(root);
        let (whole, positions) = (tokens / BLOCK_POSITIONS, tokens % BLOCK_POSITIONS);
        let depth = |id: &NodeId| self.arena[*id].depth as usize;
        let &node = path.iter().find(|id| depth(id) < whole || **id == root).expect("the root is on it");
        let next = path.iter().find(|id| depth(id) <= whole && **id != root);
        let partial = next.filter(|_| positions > 0);
        let partial = partial.map(|id| PartialMatch { node: *id, index: whole - depth(id), positions });
        Walk { node, blocks: whole - depth(&node), partial, tokens }
    }

    /// Physical blocks of a walk, including the partially matching one at the end.
    pub(crate) fn touched_blocks(&self, walk: &Walk) -> Vec<BlockId> {
        let mut blocks = self.blocks_of(walk);
        blocks.extend(walk.partial.map(|partial| self.arena[partial.node].blocks()[partial.index]));
        blocks
    }

    /// The tokens before the first block of a namespace; empty unless it is derived.
    pub(crate) fn base(&self, root: NodeId) -> Vec<Token> {
        match self.arena[root].parent {
            Some(end) => self.prefix(end, usize::MAX),
            None => Vec::new(),
        }
    }

    /// The child of `at` with the longest common prefix with `rest`, and the length of that; `None` when no child
    /// has even one token in common.
    ///
    /// Children are sorted, so the longest common prefix is on one side of the position where `rest` would be
    /// inserted. Of two equal ones it returns the later.
    pub(crate) fn closest_child(&self, at: NodeId, rest: &[Token]) -> Option<(NodeId, usize)> {
        let (children, key) = (&self.arena[at].children, BlockTokens::first_of(rest));
        let sides = [children.range(..&key).next_back(), children.range(&key..).next()];
        let common =
            sides.into_iter().flatten().map(|(first, &child)| (child, common_prefix(first.valid(), rest)));
        match common.max_by_key(|&(_, tokens)| tokens)? {
            (_, 0) => None,
            (child, BLOCK_POSITIONS) => Some((child, self.common_run(child, rest))),
            closest => Some(closest),
        }
    }

    /// Number of leading tokens of `rest` that match the blocks of `node`.
    fn common_run(&self, node: NodeId, rest: &[Token]) -> usize {
        let mut common = 0;
        for &block in self.arena[node].blocks() {
            let tokens = common_prefix(self.labels.tokens(block), &rest[common..]);
            common += tokens;
            if tokens < BLOCK_POSITIONS {
                break;
            }
        }
        common
    }

    /// Returns whether the tree continues beyond the end of a walk that ends before its prompt.
    pub(crate) fn continues(&self, walk: &Walk) -> bool {
        match walk.partial {
            Some(partial) => {
                partial.positions < self.labels.count(self.arena[partial.node].blocks()[partial.index])
            }
            None => {
                let node = &self.arena[walk.node];
                walk.blocks < node.blocks().len() || !node.children.is_empty()
            }
        }
    }

    /// Fingerprint of the last whole block of a walk.
    pub(crate) fn fingerprint_at(&self, walk: &Walk) -> Fingerprint {
        self.fingerprint_after(&self.arena[walk.node].blocks()[..walk.blocks], walk.node)
    }

    /// Fingerprint at the end of a node.
    pub(crate) fn fingerprint_of(&self, node: NodeId) -> Fingerprint {
        self.fingerprint_after(self.arena[node].blocks(), node)
    }

    /// Fingerprint of the last of `blocks`, or the seed if `node` is a root, which has no blocks.
    fn fingerprint_after(&self, blocks: &[BlockId], node: NodeId) -> Fingerprint {
        let last = blocks.last().map(|&block| self.labels.fingerprint(block));
        last.or(self.arena[node].seed).expect("only a root has no blocks, and it has a seed")
    }

    /// Nodes from `node` up, through bases, without roots.
    pub(crate) fn path_up(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        successors(Some(node), |&id| self.arena[id].parent).filter(|&id| !self.arena[id].is_root())
    }

    /// Nodes from `node` up to, and without, the root of its namespace.
    pub(crate) fn own_path(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        successors(Some(node), |&id| self.arena[id].parent).take_while(|&id| !self.arena[id].is_root())
    }

    /// The first tokens of the prefix that ends with a node, at most `count`.
    pub(crate) fn prefix(&self, node: NodeId, count: usize) -> Vec<Token> {
        let mut runs: Vec<&[BlockId]> = self.path_up(node).map(|id| self.arena[id].blocks()).collect();
        runs.reverse();
        let tokens = runs.into_iter().flatten().flat_map(|&block| self.labels.tokens(block));
        tokens.copied().take(count).collect()
    }

    /// Tokens of the prefix that ends with a node.
    pub(crate) fn prefix_tokens(&self, node: NodeId) -> usize {
        let whole = self.arena[node].end_depth() as usize * BLOCK_POSITIONS;
        let last = self.arena[node].blocks().last();
        whole - last.map_or(0, |&block| BLOCK_POSITIONS - self.labels.count(block))
    }

    /// Unlocked blocks on the path of a walk, which a lease on it would lock.
    pub(crate) fn unlocked_blocks(&self, walk: &Walk) -> usize {
        let unlocked = self.path_up(walk.node).filter(|&id| self.arena[id].locks == 0);
        unlocked.map(|id| self.blocks_on(walk, id).len()).sum()
    }

    /// Physical blocks of the whole-block part of a walk, in order.
    pub(crate) fn blocks_of(&self, walk: &Walk) -> Vec<BlockId> {
        let mut runs: Vec<&[BlockId]> = self.path_up(walk.node).map(|id| self.blocks_on(walk, id)).collect();
        runs.reverse();
        runs.concat()
    }

    /// The blocks of a node on the path of a walk that the walk covers.
    fn blocks_on(&self, walk: &Walk, id: NodeId) -> &[BlockId] {
        let blocks = self.arena[id].blocks();
        if id == walk.node { &blocks[..walk.blocks] } else { blocks }
    }
}
