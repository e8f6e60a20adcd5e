//! Which unlocked prefix goes when space is short.
//!
//! Only the end of an unlocked leaf of the prefix tree can go. Which leaf, is asked in this order:
//! the *tenant* that is the most over its share, its lowest *priority*, and of those the *policy*.
//! The tree tells when a leaf becomes evictable, loses a block, and ceases to be; blocks then go
//! from the end of the [`victim`](Evictor::victim). What has outlived its time to live goes first.
//! Nothing here changes the tree, or sees a node that somebody uses.
//!
//! A policy is a [`Ranking`] of leaves, one file each, made of the [`Facts`] of a leaf; what it must
//! remember of evicted blocks, the ghosts do. To add one: a file, a variant in [`Policy`], a row in
//! `docs/eviction.md`.

mod aged;
mod arc;
mod auto;
mod cost;
mod forecast;
mod ghosts;
mod lfu;
mod lru;
mod order;
mod policy;
mod s3_fifo;
mod shadow;
mod shares;
mod slru;
#[cfg(test)]
mod tests;
mod worth;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::time::Duration;

use auto::Auto;
pub(crate) use ghosts::{Cause, Ghosts, Past};
pub(crate) use order::Order;
pub use policy::{Policy, UnknownPolicy};
pub(crate) use shares::Shares;
pub use shares::{Share, TenantStats};
use worth::Worth;

use crate::hash::Fingerprint;
use crate::ids::{NodeId, TenantId};

/// What a policy knows of a leaf.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    /// When its last user left, on the tree's clock of blocks used.
    pub(crate) used: u64,
    /// When it was published, on the same clock.
    pub(crate) born: u64,
    /// How often it was used again, as far as is remembered.
    pub(crate) reuses: u32,
    /// Blocks from the root to its end.
    pub(crate) depth: u32,
    /// Blocks that it holds itself.
    pub(crate) blocks: u32,
}

/// What a policy knows of the cache when it is asked for a victim.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a> {
    /// The tree's clock of blocks used.
    pub(crate) now: u64,
    /// Blocks that the tenant has in the tree.
    pub(crate) capacity: usize,
    /// What has been learned of ages.
    pub(crate) worth: &'a Worth,
}

/// An evicted block that has been computed again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Return {
    /// How often it had been reused when it went.
    pub(crate) reuses: u32,
    /// Ghosts of blocks that had never been reused.
    pub(crate) ghosts_recent: usize,
    /// Ghosts of the others.
    pub(crate) ghosts_frequent: usize,
}

/// A policy: an order of the evictable leaves of one tenant and priority.
pub(crate) trait Ranking: Debug + Send {
    /// A leaf is evictable from now on.
    fn insert(&mut self, leaf: NodeId, facts: Facts);

    /// A leaf that was inserted is used again, or is gone.
    fn remove(&mut self, leaf: NodeId);

    /// A leaf that was inserted has lost some of its last blocks and has others left.
    fn shrink(&mut self, leaf: NodeId, by: u32);

    /// The leaf whose last block goes next; none when there is no leaf.
    fn victim(&mut self, context: Context<'_>) -> Option<NodeId>;

    /// All leaves inserted, for the checker.
    fn leaves(&self) -> Vec<NodeId>;

    /// An evicted block has come back.
    fn returned(&mut self, _back: Return, _capacity: usize) {}
}

/// Whose a leaf is and how dearly it is kept: leaves of one lane compete by policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lane {
    pub(crate) tenant: TenantId,
    pub(crate) priority: i8,
}

/// A leaf that may go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) lane: Lane,
    /// When it outlives its time to live, on the caller's clock.
    pub(crate) expires: Option<Duration>,
    pub(crate) facts: Facts,
}

/// All evictable leaves.
#[derive(Debug)]
pub(crate) struct Evictor {
    /// The policy that ranks now.
    policy: Policy,
    lanes: BTreeMap<Lane, Box<dyn Ranking>>,
    expiries: BTreeSet<(Duration, NodeId)>,
    worth: Worth,
    /// Chooses the policy, when none was chosen.
    auto: Option<Auto>,
}

impl Evictor {
    /// No leaf yet; for a pool of `blocks`, with `ghosts` evicted blocks remembered.
    pub(crate) fn new(policy: Policy, blocks: usize, ghosts: usize) -> Evictor {
        let auto = (policy == Policy::Auto).then(|| Auto::new(blocks, ghosts));
        Evictor {
            policy: auto.as_ref().map_or(policy, Auto::followed),
            lanes: BTreeMap::new(),
            expiries: BTreeSet::new(),
            worth: Worth::new(blocks),
            auto,
        }
    }

    /// The policy that ranks now.
    pub(crate) fn policy(&self) -> Policy {
        self.policy
    }

    /// Whether blocks that come back must be told from new ones.
    pub(crate) fn minds_the_past(&self) -> bool {
        self.auto.is_some() || self.policy != Policy::Lru
    }

    /// Whether it must be told of every use of a block.
    pub(crate) fn learns(&self) -> bool {
        self.auto.is_some() || self.policy == Policy::Forecast
    }

    /// A block was used that stands `depth` blocks deep. When true is returned, another policy
    /// ranks from now on, and all leaves have to be inserted again.
    pub(crate) fn note_use(&mut self, block: Fingerprint, depth: u32, now: u64) -> bool {
        self.worth.note(block, now);
        let auto = self.auto.as_mut();
        let Some(policy) = auto.and_then(|auto| auto.note(block, depth, now, &self.worth)) else {
            return false;
        };
        self.policy = policy;
        self.lanes.clear();
        self.expiries.clear();
        true
    }

    /// The last user of a leaf, or its last child, is gone.
    pub(crate) fn insert(&mut self, leaf: NodeId, candidate: Candidate) {
        let Candidate { lane, expires, facts } = candidate;
        let policy = self.policy;
        self.lanes.entry(lane).or_insert_with(|| policy.ranking()).insert(leaf, facts);
        self.expiries.extend(expires.map(|expires| (expires, leaf)));
    }

    /// A leaf is used again, or is gone. `candidate` is as it was inserted.
    pub(crate) fn remove(&mut self, leaf: NodeId, candidate: Candidate) {
        self.lane(candidate.lane).remove(leaf);
        if let Some(expires) = candidate.expires {
            self.expiries.remove(&(expires, leaf));
        }
    }

    /// A leaf has lost some of its last blocks and has others left.
    pub(crate) fn shrink(&mut self, leaf: NodeId, lane: Lane, by: u32) {
        self.lane(lane).shrink(leaf, by);
    }

    /// The leaf of a tenant whose last block goes next: of its lowest priority the policy's choice.
    ///
    /// `now` is the clock of blocks used, `capacity` the blocks that the tenant has in the tree.
    pub(crate) fn victim(&mut self, tenant: TenantId, now: u64, capacity: usize) -> Option<NodeId> {
        let context = Context { now, capacity, worth: &self.worth };
        self.lanes.range_mut(lanes_of(tenant)).find_map(|(_, ranking)| ranking.victim(context))
    }

    /// A leaf that has outlived its time to live.
    pub(crate) fn expired(&self, now: Duration) -> Option<NodeId> {
        self.expiries.first().filter(|&&(expires, _)| expires <= now).map(|&(_, leaf)| leaf)
    }

    /// An evicted block of a tenant has come back.
    pub(crate) fn returned(&mut self, tenant: TenantId, back: Return, capacity: usize) {
        let rankings = self.lanes.range_mut(lanes_of(tenant));
        rankings.for_each(|(_, ranking)| ranking.returned(back, capacity));
    }

    /// All leaves with their lanes, for the checker.
    pub(crate) fn leaves(&self) -> impl Iterator<Item = (NodeId, Lane)> {
        self.lanes
            .iter()
            .flat_map(|(&lane, ranking)| ranking.leaves().into_iter().map(move |leaf| (leaf, lane)))
    }

    fn lane(&mut self, lane: Lane) -> &mut dyn Ranking {
        &mut **self.lanes.get_mut(&lane).expect("a leaf is told of only after its insertion")
    }
}

/// The lanes of a tenant, lowest priority first.
fn lanes_of(tenant: TenantId) -> RangeInclusive<Lane> {
    let [first, last] = [i8::MIN, i8::MAX].map(|priority| Lane { tenant, priority });
    first..=last
}
