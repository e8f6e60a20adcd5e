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

use std::cmp::Ordering;

use crate::evict::facts::Facts;
use crate::evict::gittins::{age_of, youngest};
use crate::evict::order::Order;
use crate::evict::ranking::{Context, Ranking};
use crate::evict::sample::AgeClock;
use crate::ids::NodeId;

/// Leaves that are added to a plan one by one; with more, another plan is made.
const UNPLANNED_MAX: usize = 64;

/// Leaves by class and last use, on the clock of blocks used.
pub(super) fn forecast() -> Forecast {
    Forecast::by(AgeClock::Blocks)
}

/// Leaves by class and last use.
#[derive(Debug)]
pub(crate) struct Forecast {
    clock: AgeClock,
    leaves: Order,
    /// Ranges of leaves, the lowest index last.
    plan: Vec<AgeRange>,
    /// Class and last use of leaves inserted since the plan was made, which may belong to none of its ranges.
    unplanned: Vec<(u64, u64)>,
    /// The times by both clocks.
    planned_at: Option<(u64, u64)>,
}

/// Leaves of one class whose last use lies between two times, both included.
#[derive(Debug, Clone, Copy)]
struct AgeRange {
    class: u64,
    from: u64,
    to: u64,
    index: f64,
}

impl AgeRange {
    /// The order of a plan: victims last; of an equal index the oldest is evicted first.
    fn order(&self, other: &AgeRange) -> Ordering {
        other.index.total_cmp(&self.index).then(other.from.cmp(&self.from))
    }
}

impl Ranking for Forecast {
    fn insert(&mut self, leaf: NodeId, facts: Facts) {
        let class = self.clock.class(facts.reuses, facts.rhythm);
        let rank = (class as u64, self.clock.used(&facts));
        self.leaves.insert(leaf, rank, facts.blocks);
        if self.planned_at.is_some() {
            self.unplanned.push(rank);
        }
        if self.unplanned.len() > UNPLANNED_MAX {
            self.planned_at = None;
            self.unplanned.clear();
        }
    }

    fn remove(&mut self, leaf: NodeId) {
        self.leaves.remove(leaf);
    }

    fn shrink(&mut self, leaf: NodeId, by: u32) {
        self.leaves.shrink(leaf, by);
    }

    fn victim(&mut self, context: Context<'_>) -> Option<NodeId> {
        match self.planned_at == Some((context.now, context.now_ms)) {
            true => self.extend_plan(context),
            false => self.make_plan(context),
        }
        self.next_planned().or_else(|| {
            self.make_plan(context);
            self.next_planned()
        })
    }

    fn needs_sample(&self) -> bool {
        true
    }

    fn leaves(&self) -> Vec<NodeId> {
        self.leaves.leaves().collect()
    }
}

impl Forecast {
    /// No leaves, whose ages are measured by `clock`.
    pub(super) fn by(clock: AgeClock) -> Forecast {
        Forecast {
            clock,
            leaves: Order::default(),
            plan: Vec::new(),
            unplanned: Vec::new(),
            planned_at: None,
        }
    }

    fn next_planned(&mut self) -> Option<NodeId> {
        while let Some(&AgeRange { class, from, to, .. }) = self.plan.last() {
            match self.leaves.first_from((class, from)) {
                Some((rank, leaf)) if rank <= (class, to) => return Some(leaf),
                _ => self.plan.pop(),
            };
        }
        None
    }

    /// Lists the ages present in the order of their indices.
    fn make_plan(&mut self, context: Context<'_>) {
        let (now, indices) = (context.now_by(self.clock), context.sample.indices(self.clock));
        self.planned_at = Some((context.now, context.now_ms));
        self.plan.clear();
        self.unplanned.clear();
        let mut next = (0, 0);
        while let Some(((class, used), _)) = self.leaves.first_from(next) {
            let age = age_of(now.saturating_sub(used));
            let to = now.saturating_sub(youngest(age)).max(used);
            self.plan.push(AgeRange { class, from: used, to, index: indices.index(class as usize, age) });
            next = (class, to + 1);
        }
        self.plan.sort_by(AgeRange::order);
    }

    /// Adds the leaves inserted since the plan was made: where a leaf was evicted, what it continued is one.
    fn extend_plan(&mut self, context: Context<'_>) {
        let (now, indices) = (context.now_by(self.clock), context.sample.indices(self.clock));
        for (class, used) in self.unplanned.drain(..) {
            let index = indices.index(class as usize, age_of(now.saturating_sub(used)));
            let range = AgeRange { class, from: used, to: used, index };
            let place = self.plan.partition_point(|planned| planned.order(&range).is_lt());
            self.plan.insert(place, range);
        }
    }
}
