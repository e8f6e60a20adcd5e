//! Blocks in the host's memory, for an engine whose blocks in use are in a device's memory: a cache of the blocks last
//! written, above a disk or without one.
//!
//! Above a disk every block is on disk as well, so evicting it here loses nothing, and a read that misses here is
//! passed to the disk and leaves a copy. Without a disk, a slot is a part of this memory of the size of a block.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use kvik_cache::Identity;
use kvik_cache::tier::{IoFault, Level, Observed, Record, SlotId, Use, Wear};
use rustc_hash::FxHashMap;

use super::{BlockStore, Buffer, Buffers, Completed, Waker};
use crate::stats::{DiskRole, HostStats};

/// A store whose blocks are in the host's memory, as far as there is room.
pub struct HostStore {
    /// The store that holds all blocks; `None` if they are only here.
    below: Option<Box<dyn BlockStore>>,
    /// Transfer buffers, if there is no store below.
    buffers: Buffers,
    held: FxHashMap<SlotId, Held>,
    /// Slots that are held, by their last use.
    order: BTreeMap<u64, SlotId>,
    /// Stamp of the last use.
    stamp: u64,
    blocks_max: usize,
    /// Operations completed here and not returned yet.
    completed: VecDeque<Completed>,
    /// Reads in progress below, by ticket.
    reading: FxHashMap<u64, Identity>,
    /// Notified when an operation is completed here at once.
    waker: Waker,
}

/// A block that is held.
struct Held {
    identity: Identity,
    bytes: Vec<u8>,
    used: u64,
}

impl HostStore {
    /// A cache of `blocks_max` blocks of `below`, which uses the same `waker`.
    pub fn above(below: Box<dyn BlockStore>, blocks_max: usize, waker: Waker) -> HostStore {
        let buffers = Buffers::new(0, below.payload_bytes());
        HostStore { below: Some(below), ..HostStore::alone(buffers, blocks_max, waker) }
    }

    /// A store of `slots` slots without a disk. Its blocks are lost when it is dropped.
    pub fn alone(buffers: Buffers, slots: usize, waker: Waker) -> HostStore {
        HostStore {
            below: None,
            buffers,
            held: FxHashMap::default(),
            order: BTreeMap::new(),
            stamp: 0,
            blocks_max: slots,
            completed: VecDeque::new(),
            reading: FxHashMap::default(),
            waker,
        }
    }

    /// Stores a copy of a block, evicting the least recently used one if there is no room.
    fn keep(&mut self, slot: SlotId, identity: Identity, payload: &[u8]) {
        let mut bytes = self.drop_held(slot).unwrap_or_default();
        if self.held.len() >= self.blocks_max {
            let Some((_, oldest)) = self.order.pop_first() else { return };
            bytes = self.held.remove(&oldest).map_or(bytes, |held| held.bytes);
        }
        bytes.clear();
        bytes.extend_from_slice(payload);
        self.stamp += 1;
        self.order.insert(self.stamp, slot);
        self.held.insert(slot, Held { identity, bytes, used: self.stamp });
    }

    /// Drops the copy of a slot; returns its memory.
    fn drop_held(&mut self, slot: SlotId) -> Option<Vec<u8>> {
        let held = self.held.remove(&slot)?;
        self.order.remove(&held.used);
        Some(held.bytes)
    }

    /// Drops the copy of a slot that holds another block now.
    fn drop_other(&mut self, observed: &Observed) {
        let identity = observed.record.map(|record| record.identity);
        if self.held.get(&observed.slot).is_some_and(|held| Some(held.identity) != identity) {
            self.drop_held(observed.slot);
        }
    }

    fn note_use(&mut self, slot: SlotId) {
        if let Some(held) = self.held.get_mut(&slot) {
            self.order.remove(&held.used);
            self.stamp += 1;
            held.used = self.stamp;
            self.order.insert(self.stamp, slot);
        }
    }

    fn complete(&mut self, completed: Completed) {
        self.completed.push_back(completed);
        self.waker.wake();
    }

    /// Updates the copies after an operation of the store below: a block that was read is copied, and one that could
    /// not be written is dropped.
    fn follow(&mut self, completed: Completed) -> Completed {
        match &completed {
            Completed::Written { slot, result: Err(_) } => drop(self.drop_held(*slot)),
            Completed::Written { .. } => {}
            Completed::Read { ticket, slot, result } => {
                let identity = self.reading.remove(ticket);
                if let (Some(identity), Ok((buffer, _))) = (identity, result) {
                    self.keep(*slot, identity, buffer);
                }
            }
            Completed::Seen(seen) => seen.iter().for_each(|seen| self.drop_other(&seen.observed)),
            Completed::TookOver => {}
        }
        completed
    }
}

impl BlockStore for HostStore {
    fn payload_bytes(&self) -> usize {
        self.buffers.payload_bytes()
    }

    fn buffer(&mut self) -> Option<Buffer> {
        match &mut self.below {
            Some(below) => below.buffer(),
            None => self.buffers.take(),
        }
    }

    fn write(&mut self, slot: SlotId, record: &Record, payload: Buffer) {
        self.keep(slot, record.identity, &payload);
        match &mut self.below {
            Some(below) => below.write(slot, record, payload),
            None => self.complete(Completed::Written { slot, result: Ok(Duration::ZERO) }),
        }
    }

    fn read(&mut self, ticket: u64, slot: SlotId, identity: Identity, mut into: Buffer) {
        let started = Instant::now();
        self.note_use(slot);
        match (self.held.get(&slot).filter(|held| held.identity == identity), &mut self.below) {
            (Some(held), _) => {
                into.copy_from_slice(&held.bytes);
                self.complete(Completed::Read { ticket, slot, result: Ok((into, started.elapsed())) });
            }
            (None, Some(below)) => {
                self.reading.insert(ticket, identity);
                below.read(ticket, slot, identity, into);
            }
            // Every slot that was written and not erased is held.
            (None, None) => self.complete(Completed::Read { ticket, slot, result: Err(IoFault::Corrupt) }),
        }
    }

    fn touch(&mut self, slot: SlotId, use_: Use) {
        self.note_use(slot);
        if let Some(below) = &mut self.below {
            below.touch(slot, use_);
        }
    }

    fn pin(&mut self, slot: SlotId, pinned: bool) {
        if let Some(below) = &mut self.below {
            below.pin(slot, pinned);
        }
    }

    fn erase(&mut self, slot: SlotId) {
        self.drop_held(slot);
        if let Some(below) = &mut self.below {
            below.erase(slot);
        }
    }

    fn erasing(&self) -> usize {
        self.below.as_ref().map_or(0, |below| below.erasing())
    }

    fn evict(&mut self, slot: SlotId) {
        self.drop_held(slot);
        if let Some(below) = &mut self.below {
            below.evict(slot);
        }
    }

    fn evicting(&self) -> usize {
        self.below.as_ref().map_or(0, |below| below.evicting())
    }

    fn answers(&self) -> Option<PathBuf> {
        self.below.as_ref().and_then(|below| below.answers())
    }

    fn trim(&mut self) {
        match &mut self.below {
            Some(below) => below.trim(),
            None => self.buffers.trim(),
        }
    }

    fn completed(&mut self) -> Option<Completed> {
        if let Some(completed) = self.completed.pop_front() {
            return Some(completed);
        }
        let completed = self.below.as_mut()?.completed()?;
        Some(self.follow(completed))
    }

    fn role(&self) -> DiskRole {
        self.below.as_ref().map_or(DiskRole::Writer, |below| below.role())
    }

    fn wear(&self) -> Wear {
        self.below.as_ref().map_or_else(Wear::default, |below| below.wear())
    }

    fn host(&self) -> Option<HostStats> {
        Some(HostStats { blocks: self.blocks_max, used: self.held.len(), is_last: self.below.is_none() })
    }

    fn level(&self, slot: SlotId) -> Level {
        match &self.below {
            Some(below) if !self.held.contains_key(&slot) => below.level(slot),
            _ => Level::Host,
        }
    }
}
