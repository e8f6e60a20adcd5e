//! Evicts the leaf with the lowest Gittins index: the fewest expected hits for its space, given its age and reuses
//! (see `gittins`).
//!
//! LRU evicts by age alone, the oldest first. But a conversation continues only after its reader has read: a prefix
//! used a moment ago is not needed for a while, and most prefixes used once are never used again. In a cache too
//! small for that pause, LRU evicts every prefix a moment before its next use; this policy evicts new ones instead,
//! and keeps those whose age makes their next use likely.
//!
//! Leaves are ordered by class and last use. At most once per tick of the clock, the ages present, some hundred at
//! most, are sorted by index; victims come from the lowest range, the oldest first.

use crate::evict::gittins::{CLASSES, age_of, class_of, youngest};
use crate::evict::order::Order;
use crate::evict::ranking::{Context, Facts, Ranking};
use crate::ids::NodeId;

/// Leaves by class and last use.
#[derive(Debug, Default)]
pub(crate) struct Forecast {
    leaves: Order,
    /// Ranges of leaves, the lowest index last; leaves inserted later belong to none.
    plan: Vec<AgeRange>,
    planned_at: Option<u64>,
}

/// Leaves of one class whose last use lies between two times, both included.
#[derive(Debug, Clone, Copy)]
struct AgeRange {
    class: u64,
    from: u64,
    to: u64,
    index: f64,
}

impl Ranking for Forecast {
    fn insert(&mut self, leaf: NodeId, facts: Facts) {
        self.leaves.insert(leaf, (class_of(facts.reuses) as u64, facts.used), facts.blocks);
    }

    fn remove(&mut self, leaf: NodeId) {
        self.leaves.remove(leaf);
    }

    fn shrink(&mut self, leaf: NodeId, by: u32) {
        self.leaves.shrink(leaf, by);
    }

    fn victim(&mut self, context: Context<'_>) -> Option<NodeId> {
        if self.planned_at != Some(context.now) {
            self.make_plan(context);
        }
        self.next_planned().or_else(|| {
            self.make_plan(context);
            self.next_planned()
        })
    }

    fn needs_gittins_index(&self) -> bool {
        true
    }

    fn leaves(&self) -> Vec<NodeId> {
        self.leaves.leaves().collect()
    }
}

impl Forecast {
    fn next_planned(&mut self) -> Option<NodeId> {
        while let Some(&AgeRange { class, from, to, .. }) = self.plan.last() {
            match self.leaves.first_from((class, from)) {
                Some((rank, leaf)) if rank <= (class, to) => return Some(leaf),
                _ => self.plan.pop(),
            };
        }
        None
    }

    /// Lists the ages present by index; of an equal index the oldest is evicted first.
    fn make_plan(&mut self, context: Context<'_>) {
        let Context { now, gittins, .. } = context;
        self.planned_at = Some(now);
        self.plan.clear();
        for class in 0..CLASSES {
            let mut from = 0;
            while let Some(((found, used), _)) = self.leaves.first_from((class as u64, from)) {
                if found != class as u64 {
                    break;
                }
                let age = age_of(now.saturating_sub(used));
                let to = now.saturating_sub(youngest(age)).max(used);
                self.plan.push(AgeRange { class: found, from: used, to, index: gittins.index(class, age) });
                from = to + 1;
            }
        }
        self.plan.sort_by(|a, b| b.index.total_cmp(&a.index).then(b.from.cmp(&a.from)));
    }
}
