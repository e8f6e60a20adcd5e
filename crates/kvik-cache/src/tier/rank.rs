//! The victim when the tier is full: the least recently used leaf of the tenant with the most slots for its weight.
//!
//! Only leaves are ranked, that is blocks without stored children: without its ancestors a block is worthless. When
//! a leaf is evicted, its parent takes over its last use, so a prefix is as recent as the most recent conversation
//! that began with it.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use super::record::SlotId;

/// A tenant's share of the tier.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DiskShare {
    /// Its weight relative to the other tenants, above 0.
    pub weight: f64,
    /// Maximum number of slots it may fill; all when `None`.
    pub slots_max: Option<usize>,
}

impl Default for DiskShare {
    fn default() -> DiskShare {
        DiskShare { weight: 1.0, slots_max: None }
    }
}

/// The slots of a tenant.
#[derive(Debug, Default)]
struct Owner {
    share: DiskShare,
    slots: usize,
    /// Its leaves by last use.
    leaves: BTreeSet<(u64, SlotId)>,
}

/// The leaves of all tenants.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    owners: FxHashMap<u64, Owner>,
}

impl Ranks {
    pub(super) fn set_share(&mut self, owner: u64, share: DiskShare) {
        self.owners.entry(owner).or_default().share = share;
    }

    /// Counts a slot of `owner`.
    pub(super) fn add_slot(&mut self, owner: u64) {
        self.owners.entry(owner).or_default().slots += 1;
    }

    /// Undoes [`add_slot`](Ranks::add_slot).
    pub(super) fn remove_slot(&mut self, owner: u64) {
        self.owners.entry(owner).or_default().slots -= 1;
    }

    /// Ranks a leaf by its last use.
    pub(super) fn insert(&mut self, owner: u64, stamp: u64, slot: SlotId) {
        self.owners.entry(owner).or_default().leaves.insert((stamp, slot));
    }

    /// Removes a leaf, if it is ranked.
    pub(super) fn remove(&mut self, owner: u64, stamp: u64, slot: SlotId) {
        self.owners.entry(owner).or_default().leaves.remove(&(stamp, slot));
    }

    /// Slots of a tenant.
    pub(super) fn slots_of(&self, owner: u64) -> usize {
        self.owners.get(&owner).map_or(0, |owner| owner.slots)
    }

    /// Returns whether `owner` has reached its maximum number of slots.
    pub(super) fn is_full(&self, owner: u64) -> bool {
        self.owners
            .get(&owner)
            .is_some_and(|owner| owner.share.slots_max.is_some_and(|max| owner.slots >= max))
    }

    /// The least recently used leaf of `owner`.
    pub(super) fn oldest_of(&self, owner: u64) -> Option<SlotId> {
        self.owners.get(&owner)?.oldest()
    }

    /// The least recently used leaf of the victim tenant: most slots for its weight, of those that have a leaf.
    pub(super) fn oldest(&self) -> Option<SlotId> {
        let able = self.owners.iter().filter(|(_, owner)| !owner.leaves.is_empty());
        // Equal loads are ordered by the owner's id, so that the choice is deterministic.
        let most = able.max_by(|(a, one), (b, other)| one.load().total_cmp(&other.load()).then(a.cmp(b)));
        most.and_then(|(_, owner)| owner.oldest())
    }

    /// Leaves of all tenants, for the checker.
    pub(super) fn leaves(&self) -> impl Iterator<Item = (u64, u64, SlotId)> {
        let of = |(&owner, ranked): (&u64, &Owner)| -> Vec<_> {
            ranked.leaves.iter().map(|&(stamp, slot)| (owner, stamp, slot)).collect()
        };
        self.owners.iter().flat_map(of)
    }
}

impl Owner {
    fn oldest(&self) -> Option<SlotId> {
        self.leaves.first().map(|&(_, slot)| slot)
    }

    fn load(&self) -> f64 {
        self.slots as f64 / self.share.weight
    }
}
