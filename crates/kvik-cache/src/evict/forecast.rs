//! The leaf goes that is worth the least room: the one from which, by its age and its reuses, the
//! fewest hits can be hoped for (see `worth`).
//!
//! LRU takes the age alone, and always the oldest. But a conversation comes back after a reader has
//! read: what has just been used is not needed for a while, and most of what is used once never is
//! again. In a cache too small for the pause, LRU throws out everything a moment before it is
//! needed; here newcomers go instead, and what has waited long enough to come back soon stays.
//!
//! Leaves stand by class and last use. Once for each moment, the ages present are put in order of
//! worth, some hundred at most; victims then come from the least worthy, the oldest first.

use super::worth::{CLASSES, age_of, class_of, youngest};
use super::{Context, Facts, Order, Ranking};
use crate::ids::NodeId;

/// Leaves by class and last use.
#[derive(Debug, Default)]
pub(crate) struct Forecast {
    leaves: Order,
    /// Ranges of leaves, the least worthy last; what came later is in none.
    plan: Vec<Range>,
    planned_at: Option<u64>,
}

/// Leaves of one class whose last use lies between two moments, both included.
#[derive(Debug, Clone, Copy)]
struct Range {
    class: u64,
    from: u64,
    to: u64,
    worth: f64,
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

    fn leaves(&self) -> Vec<NodeId> {
        self.leaves.leaves().collect()
    }
}

impl Forecast {
    fn next_planned(&mut self) -> Option<NodeId> {
        while let Some(&Range { class, from, to, .. }) = self.plan.last() {
            match self.leaves.first_from((class, from)) {
                Some((rank, leaf)) if rank <= (class, to) => return Some(leaf),
                _ => self.plan.pop(),
            };
        }
        None
    }

    /// Lists the ages present, by worth; of equal worth the oldest goes first.
    fn make_plan(&mut self, context: Context<'_>) {
        let Context { now, worth, .. } = context;
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
                self.plan.push(Range { class: found, from: used, to, worth: worth.of(class, age) });
                from = to + 1;
            }
        }
        self.plan.sort_by(|a, b| b.worth.total_cmp(&a.worth).then(b.from.cmp(&a.from)));
    }
}
