//! Which block is in which slot of the disk tier, and in which state: facts in, slots out, no I/O.
//!
//! ```text
//!          place             written
//!   free ─────────► writing ─────────► stored ◄───► reading   pinned for reading, until the last reader unpins it
//!    ▲                 │ not written     │            │
//!    └─────────────────┴─────────────────┴────────────┘       evicted, superseded, expired, damaged
//! ```
//!
//! Invariants: a slot is on the free list exactly when it holds no record and is not being dropped; the index
//! contains exactly the slots with a record; exactly the leaves that are stored, not read and not pinned are
//! ranked; and of all blocks that are stored, not read and not pinned, those with a time to live are listed by its
//! end.

use std::collections::BTreeSet;

use rustc_hash::FxHashSet;

use super::index::Index;
use super::rank::{DiskShare, Ranks};
use super::record::{Record, SlotId, end_restarted, is_expired, later};
use crate::hash::Identity;
use crate::tree::FollowerIndex;

/// The disk tier of one model and KV format.
#[derive(Debug)]
pub struct Tier {
    pub(super) slots: Vec<Slot>,
    /// Slots without a record, the next one to be used last.
    pub(super) free: Vec<SlotId>,
    pub(super) index: Index,
    /// The index of followers, if it was requested.
    pub(super) followers: Option<FollowerIndex<Identity>>,
    pub(super) ranks: Ranks,
    /// Ends of times to live, the earliest first.
    pub(super) expiries: BTreeSet<(u64, SlotId)>,
    /// Recently swept blocks, so that a miss can be explained.
    pub(super) swept: FxHashSet<Identity>,
    /// Stamp of the latest use.
    pub(super) stamp: u64,
    pub(super) totals: TierTotals,
    /// Slots that the index of followers has visited, for the tests.
    #[cfg(test)]
    pub(super) visits: usize,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Slot {
    pub(super) record: Option<Record>,
    pub(super) state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum State {
    #[default]
    Free,
    Writing,
    /// Being written, but dropped meanwhile: its record is gone, and its slot is freed when the write has ended.
    Dropped,
    Stored,
    /// Pinned by this many readers; when `damaged`, it is released with the last of them.
    Reading {
        readers: u32,
        damaged: bool,
    },
}

/// The result of placing a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// The block, or a longer one that begins with it, is already stored or being written.
    Held(SlotId),
    /// Its bytes are to be written here; [`Tier::written`] reports the completion.
    Write(SlotId),
    /// Its parent is not stored, so it could not be found.
    Unreachable,
    /// No block can be evicted for it.
    Full,
}

/// Counters of the tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TierStats {
    /// Slots in all.
    pub slots: usize,
    /// Slots that hold a block.
    pub used: usize,
    /// Counts so far.
    pub totals: TierTotals,
}

/// Counts since the tier was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierTotals {
    /// Blocks found stored when the tier was created.
    pub adopted: u64,
    /// Blocks written.
    pub written: u64,
    /// Blocks whose writing failed.
    pub write_faults: u64,
    /// Blocks read back intact.
    pub read: u64,
    /// Blocks that were read back damaged.
    pub read_faults: u64,
    /// Blocks evicted because space was short.
    pub evicted: u64,
    /// Blocks that expired.
    pub expired: u64,
}

impl Tier {
    /// A tier of `slots` empty slots.
    pub fn new(slots: u32) -> Tier {
        Tier {
            slots: vec![Slot::default(); slots as usize],
            free: (0..slots).rev().map(SlotId).collect(),
            index: Index::default(),
            followers: None,
            ranks: Ranks::default(),
            expiries: BTreeSet::new(),
            swept: FxHashSet::default(),
            stamp: 0,
            totals: TierTotals::default(),
            #[cfg(test)]
            visits: 0,
        }
    }

    /// Returns a tier of `slots` slots, some of which already hold blocks, and the slots that must be erased
    /// because they repeat a block.
    pub fn with(slots: u32, records: impl IntoIterator<Item = (SlotId, Record)>) -> (Tier, Vec<SlotId>) {
        let mut tier = Tier::new(slots);
        let mut surplus = Vec::new();
        for (slot, record) in records {
            let known = tier.index.slot(&record.identity).is_some();
            let vacant = tier.slots.get(slot.index()).is_some_and(|slot| slot.record.is_none());
            if known || !vacant {
                surplus.push(slot);
                continue;
            }
            tier.stamp = tier.stamp.max(record.use_.stamp);
            tier.hold(slot, record, State::Stored);
            tier.totals.adopted += 1;
        }
        tier.free.retain(|slot| tier.slots[slot.index()].record.is_none());
        let stored: Vec<SlotId> = tier.used().map(|(slot, _)| slot).collect();
        stored.into_iter().for_each(|slot| tier.rank(slot));
        (tier, surplus)
    }

    /// Sets a tenant's share.
    pub fn set_share(&mut self, owner: u64, share: DiskShare) {
        self.ranks.set_share(owner, share);
    }

    /// Takes back the shares of all tenants: what is stored of those whose share is not set again makes way for others.
    pub fn withdraw_shares(&mut self) {
        self.ranks.withdraw_shares();
    }

    /// Finds a slot for a computed block, in the namespace with this root.
    pub fn place(&mut self, mut record: Record, root: &Identity, now_s: u64) -> Placement {
        let fresh = |slot: SlotId| !self.is_stale(slot, now_s);
        if let Some(slot) = self.index.longer(&record.parent, &record.tokens, fresh) {
            return Placement::Held(slot);
        }
        let parent = self.index.slot(&record.parent);
        if record.parent != *root && !parent.is_some_and(fresh) {
            return Placement::Unreachable;
        }
        // A request for the replaced block applies to the blocks before it as well, and to what replaces it.
        if let Some(replaced) = self.index.shorter(&record.parent, &record.tokens).filter(|&slot| fresh(slot))
        {
            let end_s = end_restarted(&self.record(replaced).use_, record.use_.at_s);
            record.use_.expires_s = later(record.use_.expires_s, end_s);
        }
        // Its parent must not be evicted for it.
        if let Some(parent) = parent {
            self.unrank(parent);
        }
        // A slot that has the block holds one that has expired.
        let slot = self.index.slot(&record.identity).or_else(|| self.make_room(&record));
        if let Some(slot) = slot {
            record.use_.stamp = self.next_stamp();
            self.hold(slot, record, State::Writing);
            self.follow(&[slot]);
        }
        if let Some(parent) = parent {
            // Making room may have ranked it while it was still a leaf.
            self.unrank(parent);
            self.rank(parent);
        }
        slot.map_or(Placement::Full, Placement::Write)
    }

    /// Notes that the bytes of a slot were written, or could not be. Returns whether the slot is to be erased:
    /// because its block was dropped meanwhile, or because its previous content may still be there.
    pub fn written(&mut self, slot: SlotId, ok: bool) -> bool {
        match self.slots[slot.index()].state {
            State::Writing if ok => {
                self.slots[slot.index()].state = State::Stored;
                self.totals.written += 1;
                self.rank(slot);
            }
            State::Writing => {
                self.totals.write_faults += 1;
                self.release(slot);
                return true;
            }
            State::Dropped => {
                self.slots[slot.index()].state = State::Free;
                self.free.push(slot);
                return true;
            }
            State::Free | State::Stored | State::Reading { .. } => {}
        }
        false
    }

    /// Pins stored slots for reading. Each must be unpinned with [`unpin_after_reading`](Tier::unpin_after_reading).
    pub fn pin_for_reading(&mut self, slots: &[SlotId]) {
        for &slot in slots {
            self.unrank(slot);
            let state = &mut self.slots[slot.index()].state;
            *state = match *state {
                State::Reading { readers, damaged } => State::Reading { readers: readers + 1, damaged },
                _ => State::Reading { readers: 1, damaged: false },
            };
        }
    }

    /// Unpins a slot that was read, `intact` or not, or was not read after all (`None`). Returns whether it is to
    /// be erased.
    #[must_use]
    pub fn unpin_after_reading(&mut self, slot: SlotId, intact: Option<bool>) -> bool {
        let State::Reading { readers, damaged } = self.slots[slot.index()].state else { return false };
        match intact {
            Some(true) => self.totals.read += 1,
            Some(false) => self.totals.read_faults += 1,
            None => {}
        }
        let damaged = damaged || intact == Some(false);
        self.slots[slot.index()].state = match readers {
            1 => State::Stored,
            _ => State::Reading { readers: readers - 1, damaged },
        };
        if readers == 1 && damaged {
            self.release(slot);
            return true;
        }
        self.rank(slot);
        false
    }

    /// Pins or unpins a block. Returns its slot if that is a change.
    pub fn pin(&mut self, identity: &Identity, pinned: bool) -> Option<SlotId> {
        let slot = self.index.slot(identity)?;
        if self.record(slot).pinned == pinned {
            return None;
        }
        self.unrank(slot);
        if let Some(record) = &mut self.slots[slot.index()].record {
            record.pinned = pinned;
        }
        self.rank(slot);
        Some(slot)
    }

    /// Returns whether a block is stored and pinned.
    pub fn is_pinned(&self, identity: &Identity) -> bool {
        self.index.slot(identity).is_some_and(|slot| self.record(slot).pinned)
    }

    /// The slot of a block.
    pub fn slot(&self, identity: &Identity) -> Option<SlotId> {
        self.index.slot(identity)
    }

    /// Number of slots to be erased as soon as the write in progress has ended.
    pub fn dropping(&self) -> usize {
        // What is neither free nor holds a record. Not counted slot by slot: it is asked every few milliseconds.
        self.slots.len() - self.free.len() - self.index.len()
    }

    /// Removes a block without children; returns its slot, to be erased. A pinned block or one that is read
    /// remains; one that is being written loses its record, and its slot is to be erased once it is
    /// [`written`](Tier::written).
    pub fn drop_leaf(&mut self, identity: &Identity) -> Option<SlotId> {
        let slot = self.index.slot(identity)?;
        if self.record(slot).pinned || self.index.has_children(identity) {
            return None;
        }
        self.take_out(slot)
    }

    /// Removes a block; returns its slot, to be erased, unless it is being read or written.
    fn take_out(&mut self, slot: SlotId) -> Option<SlotId> {
        match self.slots[slot.index()].state {
            State::Stored => {
                self.release(slot);
                Some(slot)
            }
            State::Writing => {
                self.forget(slot);
                self.slots[slot.index()].state = State::Dropped;
                None
            }
            State::Free | State::Dropped | State::Reading { .. } => None,
        }
    }

    /// Returns whether a block is stored or being written, and has not expired.
    pub fn holds(&self, identity: &Identity, now_s: u64) -> bool {
        self.index.slot(identity).is_some_and(|slot| !self.is_stale(slot, now_s))
    }

    /// Removes expired blocks, and those that `picked` selects; returns the slots to erase. Blocks that are being
    /// read remain; those that are being written are to be erased once they are [`written`](Tier::written).
    pub fn remove(&mut self, now_s: u64, picked: impl Fn(&Record) -> bool) -> Vec<SlotId> {
        let state = |slot: SlotId| self.slots[slot.index()].state;
        let old = |slot, record: &Record| state(slot) == State::Stored && is_expired(record, now_s);
        let removed = self.used().filter(|&(slot, record)| old(slot, record) || picked(record));
        let removed: Vec<SlotId> = removed.map(|(slot, _)| slot).collect();
        self.totals.expired += removed.iter().filter(|&&slot| old(slot, self.record(slot))).count() as u64;
        removed.into_iter().filter_map(|slot| self.take_out(slot)).collect()
    }

    /// The record of a slot.
    ///
    /// # Panics
    /// If the slot is empty.
    pub fn record(&self, slot: SlotId) -> &Record {
        self.slots[slot.index()].record.as_ref().expect("only slots in use are asked about")
    }

    /// The slots in use, with their records.
    pub fn used(&self) -> impl Iterator<Item = (SlotId, &Record)> {
        let slots = self.slots.iter().zip(0..);
        slots.filter_map(|(slot, index)| Some((SlotId(index), slot.record.as_ref()?)))
    }

    /// Slots of a tenant.
    pub fn slots_of(&self, owner: u64) -> usize {
        self.ranks.slots_of(owner)
    }

    /// Counters for metrics.
    pub fn stats(&self) -> TierStats {
        let slots = self.slots.len();
        TierStats { slots, used: slots - self.free.len(), totals: self.totals }
    }

    /// Returns a slot for `record`: that of a block that it supersedes, a free one, or one that is evicted for it.
    fn make_room(&mut self, record: &Record) -> Option<SlotId> {
        let superseded = self.index.shorter(&record.parent, &record.tokens);
        if let Some(slot) = superseded.filter(|slot| self.slots[slot.index()].state == State::Stored) {
            self.release(slot);
        } else if self.ranks.is_full(record.owner) {
            let slot = self.ranks.oldest_of(record.owner)?;
            self.evict(slot);
        } else if self.free.is_empty() {
            let slot = self.ranks.oldest()?;
            self.evict(slot);
        }
        self.free.pop()
    }

    /// Evicts blocks of owners that hold more slots than their shares allow, as they do once a share is lowered, and
    /// returns their slots. At most `blocks_max`: the rest goes the next time.
    pub fn keep_shares(&mut self, blocks_max: usize) -> Vec<SlotId> {
        let mut evicted = Vec::new();
        while evicted.len() < blocks_max
            && let Some(slot) = self.ranks.oldest_beyond_share()
        {
            self.evict(slot);
            evicted.push(slot);
        }
        evicted
    }

    /// Whether [`keep_shares`](Tier::keep_shares) has something to evict.
    pub fn exceeds_share(&self) -> bool {
        self.ranks.oldest_beyond_share().is_some()
    }

    fn evict(&mut self, slot: SlotId) {
        let (parent, stamp) = (self.record(slot).parent, self.record(slot).use_.stamp);
        // A block with children is not ranked, so its stamp may change.
        let parent = self.index.slot(&parent).map(|parent| &mut self.slots[parent.index()].record);
        if let Some(Some(parent)) = parent {
            parent.use_.stamp = parent.use_.stamp.max(stamp);
        }
        self.release(slot);
        self.totals.evicted += 1;
    }

    /// Puts a record into a slot, in place of the one that it may hold. A block that stays in its slot keeps what
    /// is linked to it; another one is to be [followed](Tier::follow).
    pub(super) fn hold(&mut self, slot: SlotId, record: Record, state: State) {
        match self.slots[slot.index()].record.filter(|held| held.is_same_block(&record)) {
            Some(held) => {
                self.unrank(slot);
                self.ranks.remove_slot(held.owner);
            }
            None => {
                self.forget(slot);
                self.index.insert(&record, slot);
            }
        }
        self.slots[slot.index()] = Slot { record: Some(record), state };
        self.ranks.add_slot(record.owner);
    }

    /// Empties a slot.
    pub(super) fn release(&mut self, slot: SlotId) {
        if self.forget(slot) {
            self.free.push(slot);
        }
    }

    /// Removes the record of a slot, without freeing the slot. Returns whether there was a record.
    pub(super) fn forget(&mut self, slot: SlotId) -> bool {
        self.unrank(slot);
        let Some(record) = self.slots[slot.index()].record else { return false };
        self.unfollow(slot);
        self.slots[slot.index()] = Slot::default();
        self.index.remove(&record);
        self.ranks.remove_slot(record.owner);
        if let Some(parent) = self.index.slot(&record.parent) {
            self.rank(parent);
        }
        true
    }

    /// Ranks a slot if it is evictable, and lists its expiry if it has one.
    pub(super) fn rank(&mut self, slot: SlotId) {
        let Slot { record: Some(record), state: State::Stored } = self.slots[slot.index()] else { return };
        if record.pinned {
            return;
        }
        if record.use_.expires_s != 0 {
            self.expiries.insert((record.use_.expires_s, slot));
        }
        if !self.index.has_children(&record.identity) {
            self.ranks.insert(record.owner, record.use_.stamp, slot);
        }
    }

    /// Removes a slot from the ranking and the list of expiries.
    pub(super) fn unrank(&mut self, slot: SlotId) {
        if let Some(record) = &self.slots[slot.index()].record {
            self.expiries.remove(&(record.use_.expires_s, slot));
            self.ranks.remove(record.owner, record.use_.stamp, slot);
        }
    }

    pub(super) fn next_stamp(&mut self) -> u64 {
        // A stamp from a file may have any value.
        self.stamp = self.stamp.saturating_add(1);
        self.stamp
    }

    /// Returns whether a block has expired and is neither read nor written: it is treated as absent.
    fn is_stale(&self, slot: SlotId, now_s: u64) -> bool {
        self.slots[slot.index()].state == State::Stored && is_expired(self.record(slot), now_s)
    }
}
