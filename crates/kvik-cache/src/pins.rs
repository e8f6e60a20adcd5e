//! The register of pins: the nodes at which pinned prefixes end, and the public data about pins.
//!
//! Owns the ids of pins but no locks: the cache locks a path for each (`cache::pinning`).

use std::collections::BTreeMap;

use crate::ids::{NamespaceId, NodeId, PinId, TenantId, Token};

/// The scope of a pin limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinScope {
    /// The pins of one tenant.
    Tenant,
    /// The pins of all tenants together.
    All,
}

/// Error: the limit of pinned blocks is reached. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{needed} KV blocks are to be pinned, {pinned} are, and {limit} may be; unpin some first")]
pub struct PinLimit {
    /// Blocks that the pin would add.
    pub needed: usize,
    /// Blocks already pinned in this scope.
    pub pinned: usize,
    /// Maximum number of pinned blocks in this scope.
    pub limit: usize,
    /// The scope of the limit.
    pub scope: PinScope,
}

/// A pinned prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinInfo {
    /// Its id; never assigned to another pin of this cache.
    pub id: PinId,
    /// The namespace in which it is pinned.
    pub namespace: NamespaceId,
    /// The owning tenant.
    pub tenant: TenantId,
    /// Its first tokens, at most 64.
    pub first_tokens: Vec<Token>,
    /// All its tokens.
    pub tokens: usize,
    /// Blocks that it protects, some of them possibly shared with other pins.
    pub blocks: usize,
}

/// A removed pin, with which the caller can remove its own records of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpinned {
    /// The namespace in which it was pinned.
    pub namespace: NamespaceId,
    /// The whole blocks that it covered.
    pub tokens: Vec<Token>,
}

/// The ends of pinned prefixes; each holds a lock on its path.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    by_node: BTreeMap<NodeId, PinId>,
    last: u64,
}

impl Pins {
    /// Whether nothing is pinned.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_node.is_empty()
    }

    /// The nodes at which pins end.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.by_node.keys().copied()
    }

    /// All pins with the nodes at which they end.
    pub(crate) fn all(&self) -> impl Iterator<Item = (PinId, NodeId)> {
        self.by_node.iter().map(|(&node, &id)| (id, node))
    }

    /// The node at which a pin ends.
    pub(crate) fn node_of(&self, id: PinId) -> Option<NodeId> {
        self.all().find(|&(known, _)| known == id).map(|(_, node)| node)
    }

    /// The pin that ends at `node`.
    pub(crate) fn at(&self, node: NodeId) -> Option<PinId> {
        self.by_node.get(&node).copied()
    }

    /// Whether a pin ends at `node`.
    pub(crate) fn contains(&self, node: NodeId) -> bool {
        self.by_node.contains_key(&node)
    }

    /// Adds a pin that ends at `node`; returns false when there already is one.
    pub(crate) fn add(&mut self, node: NodeId) -> bool {
        if self.contains(node) {
            return false;
        }
        self.last += 1;
        self.by_node.insert(node, PinId(self.last));
        true
    }

    /// Removes the pin that ends at `node`; returns false when there is none.
    pub(crate) fn remove(&mut self, node: NodeId) -> bool {
        self.by_node.remove(&node).is_some()
    }
}
