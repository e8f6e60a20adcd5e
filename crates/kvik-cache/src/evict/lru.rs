//! Least recently used: an intrusive list of the unlocked nodes, by index, O(1) each.
//!
//! A sequence that ends lets go of its path from the deepest node up, so a parent always stands
//! on the newer side of its children, and the oldest node is always a leaf. All blocks of a node
//! were last used together, the later ones counting as older: so the list of nodes, each read
//! from its end, is the exact order of blocks.

use crate::ids::NodeId;

/// Unlocked nodes from the newest to the oldest.
#[derive(Debug, Default)]
pub(crate) struct Lru {
    /// Neighbours of each node, by its index; meaningful only for nodes on the list.
    links: Vec<Link>,
    newest: Option<NodeId>,
    oldest: Option<NodeId>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Link {
    newer: Option<NodeId>,
    older: Option<NodeId>,
}

impl Lru {
    pub(crate) fn insert(&mut self, node: NodeId) {
        self.link(node, Link { newer: None, older: self.newest });
    }

    pub(crate) fn remove(&mut self, node: NodeId) {
        let Link { newer, older } = self.links[node.index()];
        self.set_older(newer, older);
        self.set_newer(older, newer);
    }

    pub(crate) fn split(&mut self, upper: NodeId, lower: NodeId) {
        let newer = self.links[lower.index()].newer;
        self.link(upper, Link { newer, older: Some(lower) });
    }

    pub(crate) fn victim(&self) -> Option<NodeId> {
        self.oldest
    }

    /// The listed nodes, oldest first.
    pub(crate) fn oldest_first(&self) -> impl Iterator<Item = NodeId> {
        std::iter::successors(self.oldest, |node| self.links[node.index()].newer)
    }

    /// Puts `node` between the two neighbours of `link`.
    fn link(&mut self, node: NodeId, link: Link) {
        if self.links.len() <= node.index() {
            self.links.resize(node.index() + 1, Link::default());
        }
        self.links[node.index()] = link;
        self.set_older(link.newer, Some(node));
        self.set_newer(link.older, Some(node));
    }

    /// Makes `older` the older neighbour of `node`, or the newest of all when there is no `node`.
    fn set_older(&mut self, node: Option<NodeId>, older: Option<NodeId>) {
        match node {
            Some(node) => self.links[node.index()].older = older,
            None => self.newest = older,
        }
    }

    /// Makes `newer` the newer neighbour of `node`, or the oldest of all when there is no `node`.
    fn set_newer(&mut self, node: Option<NodeId>, newer: Option<NodeId>) {
        match node {
            Some(node) => self.links[node.index()].newer = newer,
            None => self.oldest = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(lru: &Lru) -> Vec<u32> {
        lru.oldest_first().map(|node| node.0).collect()
    }

    #[test]
    fn the_list_follows_every_change() {
        let mut lru = Lru::default();
        for node in [1, 2, 3] {
            lru.insert(NodeId(node));
        }
        assert_eq!(order(&lru), [1, 2, 3]);
        lru.split(NodeId(9), NodeId(2));
        assert_eq!(order(&lru), [1, 2, 9, 3]);
        lru.remove(NodeId(1));
        lru.remove(NodeId(9));
        lru.insert(NodeId(1));
        assert_eq!(order(&lru), [2, 3, 1]);
        for node in [3, 1, 2] {
            lru.remove(NodeId(node));
        }
        assert_eq!((order(&lru), lru.victim()), (vec![], None));
    }
}
