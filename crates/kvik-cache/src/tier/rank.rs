//! The victim when the tier is full: the least recently used leaf of the tenant with the most slots for its weight.
//!
//! Only leaves are ranked, that is blocks without stored children: without its ancestors a block is worthless. When
//! a leaf is evicted, its parent takes over its last use, so a prefix is as recent as the most recent conversation
//! that began with it.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use super::record::SlotId;

/// Weight of an owner that is gone, which makes way for every other. Not 0, since it is a divisor.
const GONE: f64 = 1e-30;

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
    /// The owners with more slots than their maximum.
    beyond: BTreeSet<u64>,
    /// Whether owners whose share is not set are gone.
    are_withdrawn: bool,
}

impl Ranks {
    pub(super) fn set_share(&mut self, owner: u64, share: DiskShare) {
        self.owner(owner).share = share;
        self.note_beyond(owner);
    }

    /// Takes back the shares of all owners but 0, which stands for no tenant: those that are not set again are gone.
    pub(super) fn withdraw_shares(&mut self) {
        self.are_withdrawn = true;
        let tenants = self.owners.iter_mut().filter(|(owner, _)| **owner != 0);
        tenants.for_each(|(_, owner)| owner.share.weight = GONE);
    }

    fn owner(&mut self, owner: u64) -> &mut Owner {
        let share = DiskShare::default();
        let weight = if self.are_withdrawn && owner != 0 { GONE } else { share.weight };
        let new = || Owner { share: DiskShare { weight, ..share }, ..Owner::default() };
        self.owners.entry(owner).or_insert_with(new)
    }

    /// Counts a slot of `owner`.
    pub(super) fn add_slot(&mut self, owner: u64) {
        self.owner(owner).slots += 1;
        self.note_beyond(owner);
    }

    /// Undoes [`add_slot`](Ranks::add_slot).
    pub(super) fn remove_slot(&mut self, owner: u64) {
        self.owner(owner).slots -= 1;
        self.note_beyond(owner);
    }

    /// Notes whether `owner` has more slots than its maximum.
    fn note_beyond(&mut self, owner: u64) {
        let beyond = |owner: &Owner| owner.share.slots_max.is_some_and(|max| owner.slots > max);
        match self.owners.get(&owner).is_some_and(beyond) {
            true => self.beyond.insert(owner),
            false => self.beyond.remove(&owner),
        };
    }

    /// Ranks a leaf by its last use.
    pub(super) fn insert(&mut self, owner: u64, stamp: u64, slot: SlotId) {
        self.owner(owner).leaves.insert((stamp, slot));
    }

    /// Removes a leaf, if it is ranked.
    pub(super) fn remove(&mut self, owner: u64, stamp: u64, slot: SlotId) {
        self.owner(owner).leaves.remove(&(stamp, slot));
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

    /// The least recently used leaf of an owner with more slots than its maximum, of those that have a leaf.
    pub(super) fn oldest_beyond_share(&self) -> Option<SlotId> {
        self.beyond.iter().find_map(|&owner| self.oldest_of(owner))
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
