//! What the tree is made of: nodes in an arena, and a label for every block.
//!
//! Labels stand in one flat array by block, allocated once. A run's blocks were mostly allocated
//! one after the other, so their labels are compared in memory order, and cutting a node moves
//! block ids only, never tokens.

use std::ops::{Index, IndexMut};

use crate::hash::Fingerprint;
use crate::ids::{BLOCK_POSITIONS, BlockId, NodeId, Token};

/// A run of consecutive blocks that are used together.
#[derive(Debug)]
pub(crate) struct Node {
    /// The node before this one; none for the root of a namespace.
    pub(crate) parent: Option<NodeId>,
    /// Fingerprint before the first block of a prompt; roots only.
    pub(crate) seed: Option<Fingerprint>,
    /// The physical blocks in order; empty for a root.
    pub(crate) blocks: Vec<BlockId>,
    /// Nodes that go on from this one's end, in the order of the tokens of their first blocks.
    pub(crate) children: Vec<Child>,
    /// Running sequences that use this node.
    pub(crate) locks: u32,
}

/// A child and its first block, by whose tokens it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Child {
    pub(crate) first: BlockId,
    pub(crate) node: NodeId,
}

/// What a block of the tree holds.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Label {
    pub(crate) fingerprint: Fingerprint,
    /// Leading tokens that are valid; fewer than 16 only at the end of a leaf.
    positions: u32,
    tokens: [Token; BLOCK_POSITIONS],
}

impl Node {
    /// The root of a namespace.
    pub(crate) fn root(seed: Fingerprint) -> Node {
        Node { parent: None, seed: Some(seed), blocks: Vec::new(), children: Vec::new(), locks: 0 }
    }

    /// A node after `parent` that nobody uses yet.
    pub(crate) fn after(parent: NodeId, blocks: Vec<BlockId>) -> Node {
        Node { parent: Some(parent), seed: None, blocks, children: Vec::new(), locks: 0 }
    }

    pub(crate) fn is_root(&self) -> bool {
        self.parent.is_none()
    }
}

impl Label {
    /// The label of no block in particular.
    pub(crate) const UNUSED: Label =
        Label { tokens: [0; BLOCK_POSITIONS], positions: 0, fingerprint: Fingerprint::UNUSED };

    /// A block that holds `tokens` (1 to 16) after the block `before`.
    pub(crate) fn new(before: Fingerprint, tokens: &[Token]) -> Label {
        let mut label = Label { positions: tokens.len() as u32, ..Label::UNUSED };
        label.tokens[..tokens.len()].copy_from_slice(tokens);
        label.fingerprint = before.child(tokens);
        label
    }

    /// The valid tokens.
    pub(crate) fn tokens(&self) -> &[Token] {
        &self.tokens[..self.positions as usize]
    }

    pub(crate) fn is_partial(&self) -> bool {
        self.tokens().len() < BLOCK_POSITIONS
    }

    /// Length of the longest common head with `rest`, at most 16.
    pub(crate) fn common_head(&self, rest: &[Token]) -> usize {
        // Nearly always the whole block is equal, and that is one comparison.
        if !self.is_partial() && rest.first_chunk() == Some(&self.tokens) {
            return BLOCK_POSITIONS;
        }
        self.tokens().iter().zip(rest).take_while(|(a, b)| a == b).count()
    }
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
