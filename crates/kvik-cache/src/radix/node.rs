//! What the tree is made of: nodes in an arena, and a label for every block.
//!
//! Labels stand in one flat array by block, allocated once. A run's blocks were mostly allocated
//! one after the other, so their labels are compared in memory order, and cutting a node moves
//! block ids only, never tokens.

use std::collections::BTreeMap;
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
    /// Nodes that go on from this one's end, by what their first blocks hold.
    pub(crate) children: BTreeMap<BlockTokens, NodeId>,
    /// Running sequences that use this node.
    pub(crate) locks: u32,
}

/// What a block of the tree holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Label {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) held: BlockTokens,
}

/// The valid tokens of one block, ordered as slices are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BlockTokens {
    /// Zero, the least token, where not valid: so the derived order is that of the valid tokens,
    /// and a shorter block stands before those that go on from it.
    tokens: [Token; BLOCK_POSITIONS],
    count: u32,
}

impl Node {
    /// The root of a namespace.
    pub(crate) fn root(seed: Fingerprint) -> Node {
        Node { parent: None, seed: Some(seed), blocks: Vec::new(), children: BTreeMap::new(), locks: 0 }
    }

    /// A node after `parent` that nobody uses yet.
    pub(crate) fn after(parent: NodeId, blocks: Vec<BlockId>) -> Node {
        Node { parent: Some(parent), seed: None, blocks, children: BTreeMap::new(), locks: 0 }
    }

    pub(crate) fn is_root(&self) -> bool {
        self.parent.is_none()
    }
}

impl Label {
    /// The label of no block in particular.
    pub(crate) const UNUSED: Label = Label { fingerprint: Fingerprint::UNUSED, held: BlockTokens::NONE };
}

impl BlockTokens {
    const NONE: BlockTokens = BlockTokens { tokens: [0; BLOCK_POSITIONS], count: 0 };

    /// The first tokens of `rest`, as many as a block holds.
    pub(crate) fn first_of(rest: &[Token]) -> BlockTokens {
        let valid = &rest[..rest.len().min(BLOCK_POSITIONS)];
        let mut block = BlockTokens { count: valid.len() as u32, ..BlockTokens::NONE };
        block.tokens[..valid.len()].copy_from_slice(valid);
        block
    }

    /// The valid tokens.
    pub(crate) fn valid(&self) -> &[Token] {
        &self.tokens[..self.count as usize]
    }

    pub(crate) fn is_partial(&self) -> bool {
        self.valid().len() < BLOCK_POSITIONS
    }

    /// Length of the longest common head with `rest`, at most 16.
    pub(crate) fn common_head(&self, rest: &[Token]) -> usize {
        // Nearly always the whole block is equal, and that is one comparison.
        if !self.is_partial() && rest.first_chunk() == Some(&self.tokens) {
            return BLOCK_POSITIONS;
        }
        self.valid().iter().zip(rest).take_while(|(a, b)| a == b).count()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_ordered_as_slices_are() {
        let blocks: [&[Token]; 7] = [&[], &[0], &[0, 0], &[0, 0, 7], &[0, 1], &[1], &[1; 16]];
        for (left, right) in blocks.iter().flat_map(|left| blocks.iter().map(move |right| (left, right))) {
            let order = BlockTokens::first_of(left).cmp(&BlockTokens::first_of(right));
            assert_eq!(order, left.cmp(right), "{left:?} and {right:?}");
        }
    }

    #[test]
    fn a_common_head_ends_at_the_valid_tokens() {
        for (held, rest, common) in [
            (&[5, 6][..], &[5, 6, 7][..], 2),
            (&[5, 6, 0], &[5, 6], 2),
            (&[5], &[6], 0),
            (&[5; 16], &[5; 40], 16),
            (&[5; 15], &[5; 40], 15),
            (&[5], &[5, 0, 0], 1),
        ] {
            assert_eq!(BlockTokens::first_of(held).common_head(rest), common, "{held:?} and {rest:?}");
        }
    }
}
