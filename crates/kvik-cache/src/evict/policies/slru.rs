//! Segmented LRU: evicts leaves that were never reused before those that were.
//!
//! A leaf is on probation until its first reuse, and protected afterwards. The policy evicts the least recently
//! used leaf on probation. While probation holds no more than a fifth of the blocks, the least recently used
//! protected leaf is demoted first, as the newest on probation.

use crate::evict::facts::Facts;
use crate::evict::order::Order;
use crate::evict::ranking::{Context, Ranking};
use crate::ids::NodeId;

/// Probation keeps at least one block in this many.
const PROBATION_SHARE: usize = 5;

/// The two segments, each by last use, or by the time of demotion.
#[derive(Debug, Default)]
pub(crate) struct Slru {
    probation: Order,
    protected: Order,
}

impl Ranking for Slru {
    fn insert(&mut self, leaf: NodeId, facts: Facts) {
        let segment = if facts.reuses == 0 { &mut self.probation } else { &mut self.protected };
        segment.insert(leaf, (facts.used, 0), facts.blocks);
    }

    fn remove(&mut self, leaf: NodeId) {
        if self.probation.remove(leaf).is_none() {
            self.protected.remove(leaf);
        }
    }

    fn shrink(&mut self, leaf: NodeId, by: u32) {
        self.probation.shrink(leaf, by);
        self.protected.shrink(leaf, by);
    }

    fn victim(&mut self, context: Context<'_>) -> Option<NodeId> {
        while self.probation.blocks() <= context.capacity / PROBATION_SHARE {
            let Some(((used, _), leaf)) = self.protected.first() else { break };
            let blocks = self.protected.remove(leaf)?;
            self.probation.insert(leaf, (context.now, used), blocks);
        }
        self.probation.first().map(|(_, leaf)| leaf)
    }

    fn leaves(&self) -> Vec<NodeId> {
        self.probation.leaves().chain(self.protected.leaves()).collect()
    }
}
