//! The nodes of the tree, and the arena that stores them.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};
use std::time::Duration;

use super::labels::BlockTokens;
use crate::evict::Rhythm;
use crate::hash::Fingerprint;
use crate::ids::{BlockId, NamespaceId, NodeId, NodeName};
use crate::lifetime::Keep;

/// A run of consecutive blocks that are used together.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) namespace: NamespaceId,
    /// The node before this one; for a root, the end of its base, if the namespace is derived.
    pub(crate) parent: Option<NodeId>,
    /// The fingerprint before the first block of a prompt; roots only.
    pub(crate) seed: Option<Fingerprint>,
    /// Blocks before the first one.
    pub(crate) depth: u32,
    /// The physical blocks of its run, in order; empty for a root.
    pub(super) run: Vec<BlockId>,
    /// Nodes that continue this one, by the content of their first blocks.
    pub(crate) children: BTreeMap<BlockTokens, NodeId>,
    /// Running sequences, pins and derived namespaces that use this node, and copies of it.
    pub(crate) locks: u32,
    /// Those of its locks that hold it for a copy, which is no use.
    pub(crate) copies: u32,
    /// Those of its locks that pins and derived namespaces have, which keep it and compute nothing.
    pub(crate) holds: u32,
    /// Pins of this namespace that end here or below; for a root, all of its namespace.
    pub(crate) pins: u32,
    pub(crate) life: Life,
}

/// The facts of a node that eviction needs; all its blocks are alike.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Life {
    /// When it was published, on the clock of blocks used.
    pub(crate) born: u64,
    /// When its last user left, on the same clock; 0 until its first user has left.
    pub(crate) used: u64,
    /// The time of the last use on the caller's clock.
    pub(crate) used_at: Duration,
    /// How often it was reused, evictions in between included as far as ghosts remember them.
    pub(crate) reuses: u32,
    /// Its rhythm at its last use, where the policy learns it.
    pub(crate) rhythm: Rhythm,
    pub(crate) keep: Keep,
    /// The [ageing value](super::Places) of its tenant at its last use.
    pub(crate) ageing: u64,
}

impl Node {
    /// The root of a namespace.
    pub(crate) fn root(namespace: NamespaceId, seed: Fingerprint) -> Node {
        Node {
            namespace,
            parent: None,
            seed: Some(seed),
            depth: 0,
            run: Vec::new(),
            children: BTreeMap::new(),
            locks: 0,
            copies: 0,
            holds: 0,
            pins: 0,
            life: Life::new(0, 0),
        }
    }

    /// The physical blocks of its run, in order; empty for a root.
    #[inline]
    pub(crate) fn blocks(&self) -> &[BlockId] {
        &self.run
    }

    pub(crate) fn is_root(&self) -> bool {
        self.seed.is_some()
    }

    /// Number of its blocks, if only pins and derived namespaces lock it.
    pub(crate) fn held_blocks(&self) -> usize {
        if self.locks > 0 && self.locks == self.holds { self.blocks().len() } else { 0 }
    }

    /// Blocks from the root to its end.
    pub(crate) fn end_depth(&self) -> u32 {
        self.depth + self.blocks().len() as u32
    }

    /// Its priority now; what is in use keeps the raised one.
    pub(crate) fn priority(&self, now: Duration) -> i8 {
        let has_ended = self.locks == 0 && self.life.lowers().is_some_and(|at| at <= now);
        if has_ended { self.life.keep.lowered().priority() } else { self.life.keep.priority() }
    }

    /// Returns whether its first user has not left it yet.
    pub(crate) fn is_new(&self) -> bool {
        self.life.used == 0
    }
}

impl Life {
    pub(crate) fn new(born: u64, reuses: u32) -> Life {
        let (used_at, rhythm) = (Duration::ZERO, Rhythm::default());
        Life { born, used: 0, used_at, reuses, rhythm, keep: Keep::NOTHING, ageing: 0 }
    }

    /// When its time to live ends, on the caller's clock, unless it is used before.
    pub(crate) fn expires(&self) -> Option<Duration> {
        self.keep.ttl.map(|ttl| self.used_at.saturating_add(ttl))
    }

    /// When its raised priority ends, on the caller's clock, unless it is used before.
    pub(crate) fn lowers(&self) -> Option<Duration> {
        self.keep.raised.map(|raised| self.used_at.saturating_add(raised.lasts))
    }
}

/// Nodes by index; the indices of removed nodes are reused.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    nodes: Vec<Option<Node>>,
    /// How many nodes each index has lost.
    generations: Vec<u32>,
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
        self.generations.push(0);
        NodeId(index)
    }

    pub(crate) fn remove(&mut self, id: NodeId) -> Node {
        self.vacant.push(id);
        let generation = &mut self.generations[id.index()];
        *generation = generation.wrapping_add(1);
        self.nodes[id.index()].take().expect("ids of removed nodes are not kept")
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len() - self.vacant.len()
    }

    /// Number of indices, vacant ones included.
    pub(crate) fn places(&self) -> usize {
        self.nodes.len()
    }

    /// The node at an index, unless it is vacant.
    pub(crate) fn get(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id.index())?.as_ref()
    }

    /// The external name of a node.
    pub(crate) fn name(&self, id: NodeId) -> NodeName {
        NodeName { place: id.0, generation: self.generations[id.index()] }
    }

    /// The node of this name, if it still exists.
    pub(crate) fn named(&self, name: NodeName) -> Option<NodeId> {
        let id = NodeId(name.place);
        self.get(id).is_some_and(|_| self.name(id) == name).then_some(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.iter_from(0)
    }

    /// The nodes from an index on.
    pub(crate) fn iter_from(&self, first: usize) -> impl Iterator<Item = (NodeId, &Node)> {
        let nodes = self.nodes.get(first..).unwrap_or_default().iter().zip(first as u32..);
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
