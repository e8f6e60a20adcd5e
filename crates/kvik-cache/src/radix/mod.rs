//! The prefix tree over token ids: which physical blocks hold which prefix.
//!
//! Owns the nodes, their lock counts, and the eviction policy that ranks the unlocked ones. Never
//! touches the pool and never allocates a block: blocks are handed in and handed back.
//!
//! ```text
//! root ── [b0 b1 b2] ─┬─ [b3 b4]          an edge is a run of whole blocks, stored in one piece;
//!                     ├─ [b5 b6 b7']      a leaf's last block may be partial (b7');
//!                     └─ [b8]             children are sorted by the tokens of their first block
//! ```
//!
//! Invariants: a locked node's ancestors are locked; a partial block ends a leaf, and its tokens
//! are the head of no sibling's; no node but a root is empty; all blocks of a node were last used
//! by the same sequences, which is why a node is split where a use of it ends.

mod node;
mod walk;

pub(crate) use node::Node;
pub(crate) use walk::{Head, Walk};

use node::Arena;

use crate::evict::{Evictor, Policy};
use crate::hash::Fingerprint;
use crate::ids::{BLOCK_POSITIONS, BlockId, NodeId, Token};

/// The prefixes of all namespaces.
#[derive(Debug)]
pub(crate) struct Radix {
    pub(crate) arena: Arena,
    pub(crate) evictor: Evictor,
    /// Blocks in unlocked nodes: as many as eviction can free.
    evictable: usize,
    /// Valid tokens in all nodes.
    tokens: usize,
}

impl Radix {
    pub(crate) fn new(policy: Policy) -> Radix {
        Radix { arena: Arena::default(), evictor: Evictor::new(policy), evictable: 0, tokens: 0 }
    }

    pub(crate) fn add_root(&mut self, before: Fingerprint) -> NodeId {
        self.arena.insert(Node::new(None, before))
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
        if blocks == self.arena[node].blocks.len() {
            return node;
        }
        let parent = self.arena[node].parent.expect("only a node with blocks is cut");
        let place = self.child_place(parent, self.arena[node].first_block());
        let mut head = self.arena[node].take_head(blocks);
        (head.parent, head.locks) = (Some(parent), self.arena[node].locks);
        head.children.push(node);
        let unlocked = head.locks == 0;
        let upper = self.arena.insert(head);
        self.arena[node].parent = Some(upper);
        self.arena[parent].children[place] = upper;
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
        debug_assert_eq!(tokens.len().div_ceil(BLOCK_POSITIONS), blocks.len());
        self.tokens += tokens.len();
        let node = &mut self.arena[at];
        if !node.is_root() && node.locks == 1 && node.children.is_empty() {
            node.append(tokens, blocks);
            return at;
        }
        let mut child = Node::new(Some(at), node.fingerprint_before(node.blocks.len()));
        child.append(tokens, blocks);
        child.locks = 1;
        let place = self.child_place(at, child.first_block());
        let id = self.arena.insert(child);
        self.arena[at].children.insert(place, id);
        id
    }

    /// Evicts the last block of the policy's victim.
    pub(crate) fn evict(&mut self) -> (BlockId, Fingerprint) {
        let victim = self.evictor.victim().expect("room is made only when enough is evictable");
        self.pop(victim)
    }

    /// Drops the last block of an unlocked leaf, and the leaf with its last one.
    pub(crate) fn pop(&mut self, leaf: NodeId) -> (BlockId, Fingerprint) {
        let node = &self.arena[leaf];
        assert!(node.locks == 0 && node.children.is_empty(), "only an unused leaf loses blocks");
        if node.blocks.len() == 1 {
            self.detach(leaf);
        }
        let node = &mut self.arena[leaf];
        let tokens = node.tokens.len();
        let popped = node.pop().expect("no node in the tree is empty");
        self.tokens -= tokens - node.tokens.len();
        self.evictable -= 1;
        if node.blocks.is_empty() {
            self.arena.remove(leaf);
        }
        popped
    }

    /// Takes a leaf out of its parent's children and out of the policy's sight.
    fn detach(&mut self, leaf: NodeId) {
        let parent = self.arena[leaf].parent.expect("a root has no blocks to lose");
        let place = self.child_place(parent, self.arena[leaf].first_block());
        debug_assert_eq!(self.arena[parent].children[place], leaf);
        self.arena[parent].children.remove(place);
        self.evictor.remove(leaf);
    }
}
