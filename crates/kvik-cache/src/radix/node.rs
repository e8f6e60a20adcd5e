//! One node of the tree and the arena that holds them all.

use std::ops::{Index, IndexMut};

use crate::hash::Fingerprint;
use crate::ids::{BLOCK_POSITIONS, BlockId, NodeId, Token};

/// A run of consecutive blocks that are used together.
#[derive(Debug)]
pub(crate) struct Node {
    /// The node before this one; none for the root of a namespace.
    pub(crate) parent: Option<NodeId>,
    /// Tokens of all blocks, shape `[blocks * 16]`; shorter when the last block is partial.
    pub(crate) tokens: Vec<Token>,
    /// The physical blocks, shape `[blocks]`; empty for a root.
    pub(crate) blocks: Vec<BlockId>,
    /// Fingerprint of each block, shape `[blocks]`.
    pub(crate) fingerprints: Vec<Fingerprint>,
    /// Fingerprint of the block before this node.
    pub(crate) before: Fingerprint,
    /// Nodes that go on from this one's end, in the order of the tokens of their first blocks.
    pub(crate) children: Vec<NodeId>,
    /// Running sequences that use this node.
    pub(crate) locks: u32,
}

impl Node {
    /// An empty node after `parent`.
    pub(crate) fn new(parent: Option<NodeId>, before: Fingerprint) -> Node {
        Node {
            parent,
            tokens: Vec::new(),
            blocks: Vec::new(),
            fingerprints: Vec::new(),
            before,
            children: Vec::new(),
            locks: 0,
        }
    }

    pub(crate) fn is_root(&self) -> bool {
        self.parent.is_none()
    }

    /// Valid tokens of the first block: what the node is sorted by among its siblings.
    pub(crate) fn first_block(&self) -> &[Token] {
        self.block_tokens(0)
    }

    /// Valid tokens of block `index`, at most 16.
    pub(crate) fn block_tokens(&self, index: usize) -> &[Token] {
        let start = (index * BLOCK_POSITIONS).min(self.tokens.len());
        &self.tokens[start..(start + BLOCK_POSITIONS).min(self.tokens.len())]
    }

    /// Whether the last block holds fewer than 16 valid tokens.
    pub(crate) fn ends_partial(&self) -> bool {
        !self.tokens.len().is_multiple_of(BLOCK_POSITIONS)
    }

    /// Fingerprint of the block before block `index`; with `index` = blocks, of the last block.
    pub(crate) fn fingerprint_before(&self, index: usize) -> Fingerprint {
        index.checked_sub(1).map_or(self.before, |last| self.fingerprints[last])
    }

    /// Appends blocks whose valid tokens are `tokens`.
    pub(crate) fn append(&mut self, tokens: &[Token], blocks: &[BlockId]) {
        let mut before = self.fingerprint_before(self.blocks.len());
        for block in tokens.chunks(BLOCK_POSITIONS) {
            before = before.child(block);
            self.fingerprints.push(before);
        }
        self.tokens.extend_from_slice(tokens);
        self.blocks.extend_from_slice(blocks);
    }

    /// Drops the last block.
    pub(crate) fn pop(&mut self) -> Option<(BlockId, Fingerprint)> {
        let block = self.blocks.pop()?;
        self.tokens.truncate(self.blocks.len() * BLOCK_POSITIONS);
        self.fingerprints.pop().map(|fingerprint| (block, fingerprint))
    }

    /// Cuts the first `blocks` blocks off into a new node without parent, children or locks.
    pub(crate) fn take_head(&mut self, blocks: usize) -> Node {
        let mut head = Node::new(None, self.before);
        head.tokens = take_front(&mut self.tokens, blocks * BLOCK_POSITIONS);
        head.blocks = take_front(&mut self.blocks, blocks);
        head.fingerprints = take_front(&mut self.fingerprints, blocks);
        self.before = head.fingerprint_before(blocks);
        head
    }
}

/// Moves the first `count` items out into a vector of their own; neither keeps slack.
fn take_front<T>(items: &mut Vec<T>, count: usize) -> Vec<T> {
    let rest = items.split_off(count);
    let mut front = std::mem::replace(items, rest);
    front.shrink_to_fit();
    front
}

/// Nodes by index; the places of removed nodes are used again.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    nodes: Vec<Option<Node>>,
    vacant: Vec<NodeId>,
}

impl Arena {
    pub(crate) fn insert(&mut self, node: Node) -> NodeId {
        if let Some(id) = self.vacant.pop() {
            self.nodes[id.index()] = Some(node);
            return id;
        }
        let index = u32::try_from(self.nodes.len()).expect("every node holds a block or is a root");
        self.nodes.push(Some(node));
        NodeId(index)
    }

    pub(crate) fn remove(&mut self, id: NodeId) {
        self.nodes[id.index()] = None;
        self.vacant.push(id);
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len() - self.vacant.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        let nodes = self.nodes.iter().zip(0..);
        nodes.filter_map(|(node, index)| Some((NodeId(index), node.as_ref()?)))
    }
}

impl Index<NodeId> for Arena {
    type Output = Node;

    fn index(&self, id: NodeId) -> &Node {
        self.nodes[id.index()].as_ref().expect("ids of removed nodes are not kept")
    }
}

impl IndexMut<NodeId> for Arena {
    fn index_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id.index()].as_mut().expect("ids of removed nodes are not kept")
    }
}
