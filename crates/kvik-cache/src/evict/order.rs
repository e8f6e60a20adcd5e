//! Leaves ordered by rank: the building block of most policies.
//!
//! Owns the rank of each leaf and their total number of blocks. A change takes O(log n).

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use crate::ids::NodeId;

/// The rank of a leaf; the lowest is evicted first. The second number is usually the tie-breaker.
pub(crate) type Rank = (u64, u64);

/// Leaves by rank.
#[derive(Debug, Default)]
pub(crate) struct Order {
    ranked: BTreeSet<(Rank, NodeId)>,
    entries: FxHashMap<NodeId, Entry>,
    blocks: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    rank: Rank,
    blocks: u32,
}

impl Order {
    /// Adds a leaf of `blocks` blocks.
    pub(crate) fn insert(&mut self, leaf: NodeId, rank: Rank, blocks: u32) {
        let before = self.entries.insert(leaf, Entry { rank, blocks });
        debug_assert!(before.is_none(), "{leaf:?} is ranked already");
        self.ranked.insert((rank, leaf));
        self.blocks += blocks as usize;
    }

    /// Removes a leaf, and returns how many blocks it has; `None` when it is absent.
    pub(crate) fn remove(&mut self, leaf: NodeId) -> Option<u32> {
        let Entry { rank, blocks } = self.entries.remove(&leaf)?;
        self.ranked.remove(&(rank, leaf));
        self.blocks -= blocks as usize;
        Some(blocks)
    }

    /// Notes that a leaf has lost some of its blocks. Does nothing when it is absent.
    pub(crate) fn shrink(&mut self, leaf: NodeId, by: u32) {
        if let Some(entry) = self.entries.get_mut(&leaf) {
            entry.blocks -= by;
            self.blocks -= by as usize;
        }
    }

    /// The leaf of the lowest rank.
    pub(crate) fn first(&self) -> Option<(Rank, NodeId)> {
        self.ranked.first().copied()
    }

    /// The leaf of the lowest rank that is at least `rank`.
    pub(crate) fn first_from(&self, rank: Rank) -> Option<(Rank, NodeId)> {
        self.ranked.range((rank, NodeId(0))..).next().copied()
    }

    /// The leaves, lowest rank first.
    pub(crate) fn leaves(&self) -> impl Iterator<Item = NodeId> {
        self.ranked.iter().map(|&(_, leaf)| leaf)
    }

    /// Blocks of all its leaves.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_follows_every_change() {
        let mut order = Order::default();
        for (leaf, rank) in [(1, 5), (2, 3), (3, 9)] {
            order.insert(NodeId(leaf), (rank, 0), 2);
        }
        assert_eq!((order.first(), order.blocks()), (Some(((3, 0), NodeId(2))), 6));
        assert_eq!(order.first_from((4, 0)), Some(((5, 0), NodeId(1))));
        order.shrink(NodeId(2), 1);
        assert_eq!((order.remove(NodeId(2)), order.remove(NodeId(2))), (Some(1), None));
        assert_eq!((order.first(), order.blocks()), (Some(((5, 0), NodeId(1))), 4));
    }
}
