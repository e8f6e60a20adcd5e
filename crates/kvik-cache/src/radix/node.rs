//! What the tree is made of: nodes, and the arena they stand in.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

use super::labels::BlockTokens;
use crate::hash::Fingerprint;
use crate::ids::{BlockId, NodeId};

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
