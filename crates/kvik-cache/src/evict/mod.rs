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

mod arc;
mod cost;
mod ghosts;
mod lfu;
mod lru;
mod order;
mod policy;
mod s3_fifo;
mod shares;
mod slru;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

pub(crate) use ghosts::{Cause, Ghosts, Past};
pub(crate) use order::Order;
pub use policy::{Policy, UnknownPolicy};
pub(crate) use shares::Shares;
pub use shares::{Share, TenantStats};

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
pub(crate) struct Context {
    /// The tree's clock of blocks used.
    pub(crate) now: u64,
    /// Blocks that the tenant has in the tree.
    pub(crate) capacity: usize,
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

    /// A leaf that was inserted has lost its last block and has others left.
    fn shrink(&mut self, leaf: NodeId);

    /// The leaf whose last block goes next; none when there is no leaf.
    fn victim(&mut self, context: Context) -> Option<NodeId>;

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
    policy: Policy,
    lanes: BTreeMap<Lane, Box<dyn Ranking>>,
    expiries: BTreeSet<(Duration, NodeId)>,
}

impl Evictor {
    pub(crate) fn new(policy: Policy) -> Evictor {
        Evictor { policy, lanes: BTreeMap::new(), expiries: BTreeSet::new() }
    }

    /// The policy that ranks now.
    pub(crate) fn policy(&self) -> Policy {
        self.policy
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

    /// A leaf has lost its last block and has others left.
    pub(crate) fn shrink(&mut self, leaf: NodeId, lane: Lane) {
        self.lane(lane).shrink(leaf);
    }

    /// The leaf of a tenant whose last block goes next: of its lowest priority the policy's choice.
    pub(crate) fn victim(&mut self, tenant: TenantId, context: Context) -> Option<NodeId> {
        self.lanes_of(tenant).find_map(|ranking| ranking.victim(context))
    }

    /// A leaf that has outlived its time to live.
    pub(crate) fn expired(&self, now: Duration) -> Option<NodeId> {
        self.expiries.first().filter(|&&(expires, _)| expires <= now).map(|&(_, leaf)| leaf)
    }

    /// An evicted block of a tenant has come back.
    pub(crate) fn returned(&mut self, tenant: TenantId, back: Return, capacity: usize) {
        self.lanes_of(tenant).for_each(|ranking| ranking.returned(back, capacity));
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

    /// The rankings of a tenant, lowest priority first.
    fn lanes_of(&mut self, tenant: TenantId) -> impl Iterator<Item = &mut Box<dyn Ranking>> {
        let [first, last] = [i8::MIN, i8::MAX].map(|priority| Lane { tenant, priority });
        self.lanes.range_mut(first..=last).map(|(_, ranking)| ranking)
    }
}
