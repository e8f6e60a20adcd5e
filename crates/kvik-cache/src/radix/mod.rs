//! The prefix tree over token ids: which physical blocks hold which prefix.
//!
//! Owns the nodes with their lock counts, what every block of the tree holds, and the eviction
//! policy that ranks the unlocked nodes. Never allocates a block: they are handed in and out.
//!
//! ```text
//! root ── [b0 b1 b2] ─┬─ [b3 b4]          a node is a run of whole blocks;
//!                     ├─ [b5 b6 b7']      a leaf's last block may be partial (b7');
//!                     └─ [b8]             children are sorted by the tokens of their first block
//! ```
//!
//! Invariants: a locked node's ancestors are locked; a partial block ends a leaf, and its tokens
//! begin no sibling's; no node but a root is empty; the blocks of a node are used by the same
//! sequences, and were last used by the same one: a node is cut where a use of it ends.

mod labels;
mod node;
mod walk;

pub(crate) use labels::BlockTokens;
pub(crate) use node::Node;
pub(crate) use walk::{Head, Walk};

use labels::Labels;
use node::Arena;

use crate::evict::{Evictor, Policy};
use crate::hash::Fingerprint;
use crate::ids::{BLOCK_POSITIONS, BlockId, NodeId, Token, blocks_for};

/// The prefixes of all namespaces.
#[derive(Debug)]
pub(crate) struct Radix {
    pub(crate) arena: Arena,
    pub(crate) evictor: Evictor,
    pub(crate) labels: Labels,
    /// Blocks in unlocked nodes: as many as eviction can free.
    evictable: usize,
    /// Valid tokens in all nodes.
    tokens: usize,
}

impl Radix {
    /// An empty tree for a pool of `blocks`.
    pub(crate) fn new(blocks: u32, policy: Policy) -> Radix {
        Radix {
            arena: Arena::default(),
            evictor: Evictor::new(policy),
            labels: Labels::new(blocks),
            evictable: 0,
            tokens: 0,
        }
    }

    pub(crate) fn add_root(&mut self, seed: Fingerprint) -> NodeId {
        self.arena.insert(Node::root(seed))
    }

    /// What the first block of a node holds: its place among its siblings.
    pub(crate) fn first_block(&self, node: NodeId) -> BlockTokens {
        let &first = self.arena[node].blocks.first().expect("no node but a root is empty");
        BlockTokens::first_of(self.labels.tokens(first))
    }

    pub(crate) fn evictable(&self) -> usize {
        self.evictable
    }

    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    pub(crate) fn nodes(&self) -> usize {
        self.arena.len()
    }

    /// Gives the first `blocks` blocks of `node` a node of their own, and returns that.
    ///
    /// `node` keeps its id, its children and its end, so that leases that end there stay right.
    pub(crate) fn cut(&mut self, node: NodeId, blocks: usize) -> NodeId {
        let whole = &self.arena[node];
        if blocks == whole.blocks.len() {
            return node;
        }
        let parent = whole.parent.expect("only a node with blocks is cut");
        let (head, rest) = whole.blocks.split_at(blocks);
        let (head, rest) = (head.to_vec(), rest.to_vec());
        let place = self.first_block(node);
        let mut upper = Node::after(parent, head);
        upper.locks = whole.locks;
        upper.children.insert(BlockTokens::first_of(self.labels.tokens(rest[0])), node);
        let unlocked = upper.locks == 0;
        let upper = self.arena.insert(upper);
        self.arena[parent].children.insert(place, upper);
        let lower = &mut self.arena[node];
        (lower.parent, lower.blocks) = (Some(upper), rest);
        if unlocked {
            self.evictor.split(upper, node);
        }
        upper
    }

    /// Locks `node` for one more user, who has locked its parent already.
    pub(crate) fn lock(&mut self, id: NodeId) {
        let node = &mut self.arena[id];
        node.locks += 1;
        if node.locks == 1 && !node.is_root() {
            self.evictable -= node.blocks.len();
            self.evictor.remove(id);
        }
    }

    /// Takes one user's lock off `node`; when it was the last one, the node counts as just used.
    pub(crate) fn unlock(&mut self, id: NodeId) {
        let node = &mut self.arena[id];
        node.locks = node.locks.checked_sub(1).expect("what is unlocked was locked");
        if node.locks == 0 && !node.is_root() {
            self.evictable += node.blocks.len();
            self.evictor.insert(id);
        }
    }

    /// Locks the path from the root to `node`.
    pub(crate) fn lock_path(&mut self, node: NodeId) {
        let mut next = Some(node);
        while let Some(id) = next {
            self.lock(id);
            next = self.arena[id].parent;
        }
    }

    /// Unlocks the path from `node` to the root, in this order: a parent is used after its child.
    pub(crate) fn unlock_path(&mut self, node: NodeId) {
        let mut next = Some(node);
        while let Some(id) = next {
            self.unlock(id);
            next = self.arena[id].parent;
        }
    }

    /// Adds blocks after `at`, the end of a lease, and returns the node where that lease ends now.
    ///
    /// The run of `at` grows when nobody else uses it and nothing follows it; so a sequence that
    /// publishes block by block makes one node, not one a block.
    pub(crate) fn grow(&mut self, at: NodeId, tokens: &[Token], blocks: &[BlockId]) -> NodeId {
        assert_eq!(blocks_for(tokens.len()), blocks.len(), "every block has its tokens");
        self.label_blocks(self.fingerprint_of(at), tokens, blocks);
        let node = &mut self.arena[at];
        if !node.is_root() && node.locks == 1 && node.children.is_empty() {
            node.blocks.extend_from_slice(blocks);
            return at;
        }
        let mut child = Node::after(at, blocks.to_vec());
        child.locks = 1;
        let child = self.arena.insert(child);
        let place = self.first_block(child);
        self.arena[at].children.insert(place, child);
        child
    }

    fn label_blocks(&mut self, mut before: Fingerprint, tokens: &[Token], blocks: &[BlockId]) {
        for (tokens, &block) in tokens.chunks(BLOCK_POSITIONS).zip(blocks) {
            before = self.labels.set(block, before, tokens);
        }
        self.tokens += tokens.len();
    }

    /// Evicts the last block of the policy's victim.
    pub(crate) fn evict(&mut self) -> BlockId {
        let victim = self.evictor.victim().expect("room is made only when enough is evictable");
        self.pop(victim)
    }

    /// Drops the last block of an unlocked leaf, and the leaf with its last one.
    pub(crate) fn pop(&mut self, leaf: NodeId) -> BlockId {
        let node = &mut self.arena[leaf];
        assert!(node.locks == 0 && node.children.is_empty(), "only an unused leaf loses blocks");
        let &block = node.blocks.last().expect("no node but a root is empty");
        if node.blocks.len() == 1 {
            self.remove(leaf);
        } else {
            node.blocks.pop();
        }
        self.evictable -= 1;
        self.tokens -= self.labels.count(block);
        block
    }

    /// Takes a leaf out of the tree.
    fn remove(&mut self, leaf: NodeId) {
        let parent = self.arena[leaf].parent.expect("a root has no blocks to lose");
        let place = self.first_block(leaf);
        self.arena[parent].children.remove(&place);
        self.evictor.remove(leaf);
        self.arena.remove(leaf);
    }
}
