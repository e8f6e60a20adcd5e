//! The interface of a policy: an order of the evictable leaves of one tenant and priority, and the facts available
//! to it.

use std::fmt::Debug;

use super::gittins::Gittins;
use crate::ids::NodeId;

/// The facts of a leaf that a policy knows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    /// When its last user left, on the tree's clock of blocks used.
    pub(crate) used: u64,
    /// When it was published, on the same clock.
    pub(crate) born: u64,
    /// How often it was reused, as far as is remembered.
    pub(crate) reuses: u32,
    /// Blocks from the root to its end.
    pub(crate) depth: u32,
    /// Blocks that it holds itself.
    pub(crate) blocks: u32,
}

/// The facts of the cache that a policy knows when it is asked for a victim.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a> {
    /// The tree's clock of blocks used.
    pub(crate) now: u64,
    /// Blocks that the tenant has in the tree.
    pub(crate) capacity: usize,
    /// The Gittins index by reuses and age.
    pub(crate) gittins: &'a Gittins,
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

    /// Returns whether the policy reads [`Context::gittins`], which costs a note for every block used.
    fn needs_gittins_index(&self) -> bool {
        false
    }
}
