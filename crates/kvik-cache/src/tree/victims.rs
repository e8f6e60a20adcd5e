//! Chooses a tenant's next victim, a block or a place, and removes it from the tree.
//!
//! Leaves are ordered by the policy, places by [Greedy-Dual](super::places). Between the first leaf and the first
//! place the same rank decides: the tokens each saves per block, plus the ageing value of its tenant at its last
//! use. So the pool is divided between blocks and places by value, without a fixed part for either.

use super::dropped::Dropped;
use super::places::{Place, PlaceId, value};
use super::radix::Radix;
use crate::evict::Cause;
use crate::ids::{BLOCK_POSITIONS, NodeId, TenantId};

/// The next victim.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Victim {
    /// The last blocks of a leaf.
    Leaf(NodeId),
    Place(PlaceId),
}

impl Radix {
    /// The next victim of a tenant: of its lowest priority the leaf that its policy chooses, or the first place,
    /// whichever has the lower rank.
    pub(crate) fn victim(&mut self, tenant: TenantId) -> Option<Victim> {
        let (now_ms, blocks) = (self.ms(self.now, self.clock), self.shares.blocks_of(tenant));
        let leaf = self.evictor.victim(tenant, self.clock, now_ms, blocks);
        let Some(place) = self.places.victim(tenant) else { return leaf.map(Victim::Leaf) };
        let goes_first = |leaf: &NodeId| {
            let priority = self.arena[*leaf].life.keep.priority();
            (priority, self.rank_of_leaf(*leaf)) <= self.places.order_of(place)
        };
        Some(leaf.filter(goes_first).map_or(Victim::Place(place), Victim::Leaf))
    }

    /// A leaf whose time to live has ended.
    pub(crate) fn expired(&self) -> Option<NodeId> {
        self.evictor.expired(self.now)
    }

    /// The rank of a leaf relative to places: every block saves its tokens and takes one block. If no sequence can
    /// resume after it, for lack of a state or of its windowed part, it saves nothing and ranks lowest.
    fn rank_of_leaf(&self, leaf: NodeId) -> u64 {
        let node = &self.arena[leaf];
        let last = *node.blocks().last().expect("no leaf is empty");
        let stateless = self.places.needs().has_state() && !self.places.is_in(last);
        match stateless || !self.places.is_held(last) {
            true => 0,
            false => node.life.ageing.saturating_add(value(BLOCK_POSITIONS, 1)),
        }
    }

    /// Adds a place, for which room was withheld, in a block of its namespace.
    pub(crate) fn add_place(&mut self, id: PlaceId, place: Place) {
        self.shares.of_mut(place.namespace).place_blocks += place.units;
        self.places.add(id, place);
    }

    /// Evicts a place; returns how many blocks were withheld for it.
    pub(crate) fn evict_place(&mut self, id: PlaceId) -> usize {
        let namespace = self.places.get(id).expect("a place that is evicted is there").namespace;
        let units = self.places.evict(id);
        self.shares.of_mut(namespace).place_blocks -= units;
        units
    }

    /// Drops the last `count` blocks of an unlocked leaf, leaving ghosts with the cause.
    pub(crate) fn evict(&mut self, leaf: NodeId, count: usize, cause: Cause) -> Dropped {
        if !self.places.needs().is_nothing() && matches!(cause, Cause::Evicted(_)) {
            self.places.age(self.owner(leaf), self.rank_of_leaf(leaf));
        }
        let ghost = self.ghosts.ghost(self.now, cause, self.arena[leaf].life.reuses);
        let dropped = self.pop(leaf, count);
        for &block in dropped.blocks.iter().rev() {
            self.ghosts.remember(self.labels.fingerprint(block), ghost);
        }
        dropped
    }
}
