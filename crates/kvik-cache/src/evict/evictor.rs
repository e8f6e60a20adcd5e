//! All evictable leaves, in lanes: by tenant, by priority, and within a lane by the policy's ranking.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use super::facts::Facts;
use super::policies::Policy;
use super::policies::auto::Auto;
use super::ranking::{Context, Ranking, Return};
use super::requests::Request;
use super::sample::Sample;
use crate::ids::{NodeId, TenantId};

/// The tenant and the priority of a leaf: leaves of one lane compete by policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lane {
    pub(crate) tenant: TenantId,
    pub(crate) priority: i8,
}

/// An evictable leaf.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) lane: Lane,
    /// When its time to live ends, on the caller's clock.
    pub(crate) expires: Option<Duration>,
    /// When its raised priority ends, and with it its place in this lane.
    pub(crate) lowers: Option<Duration>,
    pub(crate) facts: Facts,
}

/// All evictable leaves.
#[derive(Debug)]
pub(crate) struct Evictor {
    /// The current policy.
    policy: Policy,
    needs_ghost_history: bool,
    needs_uses: bool,
    lanes: BTreeMap<Lane, Box<dyn Ranking>>,
    expiries: BTreeSet<(Duration, NodeId)>,
    /// The ends of raised priorities.
    lowerings: BTreeSet<(Duration, NodeId)>,
    sample: Box<Sample>,
    /// Chooses the policy under [`Policy::Auto`].
    auto: Option<Auto>,
}

impl Evictor {
    /// An evictor without leaves, for a pool of `blocks`, with `ghosts` evicted blocks remembered.
    pub(crate) fn new(policy: Policy, blocks: usize, ghosts: usize) -> Evictor {
        let auto = (policy == Policy::Auto).then(|| Auto::new(blocks, ghosts));
        let policy = auto.as_ref().map_or(policy, Auto::followed);
        // The shadows of `auto` run every policy, whichever is followed.
        let ranking = policy.ranking();
        Evictor {
            policy,
            needs_ghost_history: auto.is_some() || ranking.needs_ghost_history(),
            needs_uses: auto.is_some() || ranking.needs_sample(),
            lanes: BTreeMap::new(),
            expiries: BTreeSet::new(),
            lowerings: BTreeSet::new(),
            sample: Box::new(Sample::new(blocks)),
            auto,
        }
    }

    /// The current policy.
    pub(crate) fn policy(&self) -> Policy {
        self.policy
    }

    /// Whether the policy must know which of the computed blocks were evicted before, and how often they had been
    /// reused.
    pub(crate) fn needs_ghost_history(&self) -> bool {
        self.needs_ghost_history
    }

    /// Whether [`note`](Evictor::note) must be called for every request.
    pub(crate) fn needs_uses(&self) -> bool {
        self.needs_uses
    }

    /// Notes a request, and sets the rhythms of its blocks. When it returns true, another policy applies from now on,
    /// and all leaves have to be inserted again.
    pub(crate) fn note(&mut self, request: &mut Request) -> bool {
        self.sample.note(request);
        let Some(auto) = self.auto.as_mut() else { return false };
        let Some(policy) = auto.note(request, &self.sample) else { return false };
        self.policy = policy;
        self.lanes.clear();
        self.expiries.clear();
        self.lowerings.clear();
        true
    }

    /// Adds a leaf whose last user or last child is gone.
    pub(crate) fn insert(&mut self, leaf: NodeId, candidate: Candidate) {
        let Candidate { lane, expires, lowers, facts } = candidate;
        let policy = self.policy;
        self.lanes.entry(lane).or_insert_with(|| policy.ranking()).insert(leaf, facts);
        self.expiries.extend(expires.map(|expires| (expires, leaf)));
        self.lowerings.extend(lowers.map(|lowers| (lowers, leaf)));
    }

    /// Removes a leaf that is used again or has been evicted. `candidate` is as it was inserted.
    pub(crate) fn remove(&mut self, leaf: NodeId, candidate: Candidate) {
        self.lane(candidate.lane).remove(leaf);
        if let Some(expires) = candidate.expires {
            self.expiries.remove(&(expires, leaf));
        }
        if let Some(lowers) = candidate.lowers {
            self.lowerings.remove(&(lowers, leaf));
        }
    }

    /// Notes that a leaf has lost `by` of its last blocks and keeps others.
    pub(crate) fn shrink(&mut self, leaf: NodeId, lane: Lane, by: u32) {
        self.lane(lane).shrink(leaf, by);
    }

    /// The leaf of a tenant whose last block is evicted next: of its lowest priority the policy's choice.
    ///
    /// `now` is the clock of blocks used, `now_ms` the caller's, `capacity` the blocks that the tenant has in the
    /// tree.
    pub(crate) fn victim(
        &mut self,
        tenant: TenantId,
        now: u64,
        now_ms: u64,
        capacity: usize,
    ) -> Option<NodeId> {
        if let Some(auto) = self.auto.as_mut() {
            auto.note_kept(tenant, capacity.saturating_sub(1));
        }
        let context = Context { now, now_ms, capacity, sample: &self.sample };
        self.lanes.range_mut(lanes_of(tenant)).find_map(|(_, ranking)| ranking.victim(context))
    }

    /// When the first time to live of a leaf ends.
    pub(crate) fn next_expiry(&self) -> Option<Duration> {
        self.expiries.first().map(|&(expires, _)| expires)
    }

    /// A leaf whose time to live has ended.
    pub(crate) fn expired(&self, now: Duration) -> Option<NodeId> {
        self.expiries.first().filter(|&&(expires, _)| expires <= now).map(|&(_, leaf)| leaf)
    }

    /// A leaf whose raised priority has ended.
    pub(crate) fn lowered(&self, now: Duration) -> Option<NodeId> {
        self.lowerings.first().filter(|&&(lowers, _)| lowers <= now).map(|&(_, leaf)| leaf)
    }

    /// Notes that an evicted block of a tenant has been computed again.
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
        &mut **self.lanes.get_mut(&lane).expect("a leaf is in its lane from its insertion on")
    }
}

/// The lanes of a tenant, lowest priority first.
fn lanes_of(tenant: TenantId) -> RangeInclusive<Lane> {
    let [first, last] = [i8::MIN, i8::MAX].map(|priority| Lane { tenant, priority });
    first..=last
}
