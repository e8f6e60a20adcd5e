//! The interface of a policy: an order of the evictable leaves of one tenant and priority, and the facts available
//! to it.

use std::fmt::Debug;

use super::facts::Facts;
use super::sample::{AgeClock, Sample};
use crate::ids::NodeId;

/// The facts of the cache that a policy knows when it is asked for a victim.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a> {
    /// The tree's clock of blocks used.
    pub(crate) now: u64,
    /// The caller's clock, as [`Facts::used_ms`].
    pub(crate) now_ms: u64,
    /// Blocks that the tenant has in the tree.
    pub(crate) capacity: usize,
    /// The Gittins indices.
    pub(crate) sample: &'a Sample,
}

impl Context<'_> {
    /// The time by one of the clocks.
    pub(crate) fn now_by(&self, clock: AgeClock) -> u64 {
        match clock {
            AgeClock::Blocks => self.now,
            AgeClock::Milliseconds => self.now_ms,
        }
    }
}

/// An evicted block that has been computed again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Return {
    /// How often it had been reused when it was evicted.
    pub(crate) reuses: u32,
    /// Ghosts of blocks that had never been reused.
    pub(crate) ghosts_recent: usize,
    /// Ghosts of the others.
    pub(crate) ghosts_frequent: usize,
}

/// A policy: an order of the evictable leaves of one tenant and priority.
pub(crate) trait Ranking: Debug + Send {
    /// Adds a leaf that has become evictable.
    fn insert(&mut self, leaf: NodeId, facts: Facts);

    /// Removes a leaf that was inserted and is used again, or has been evicted.
    fn remove(&mut self, leaf: NodeId);

    /// Notes that a leaf that was inserted has lost `by` of its last blocks and keeps others.
    fn shrink(&mut self, leaf: NodeId, by: u32);

    /// The leaf whose last block is evicted next; `None` when there is no leaf.
    fn victim(&mut self, context: Context<'_>) -> Option<NodeId>;

    /// All leaves inserted, for the checker.
    fn leaves(&self) -> Vec<NodeId>;

    /// Notes that an evicted block has been computed again.
    fn returned(&mut self, _back: Return, _capacity: usize) {}

    /// Returns whether the policy reads [`Facts::reuses`] or [`returned`](Ranking::returned), which cost a look-up
    /// among the ghosts for every block computed.
    fn needs_ghost_history(&self) -> bool {
        true
    }

    /// Returns whether the policy reads [`Facts::rhythm`] or [`Context::sample`], which cost a note for every block
    /// used.
    fn needs_sample(&self) -> bool {
        false
    }
}
