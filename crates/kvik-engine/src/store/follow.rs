//! Reading a store that another process writes, and taking over when that has ended.
//!
//! ```text
//!   lock held elsewhere ── look ──► Seen: slots whose headers have changed      at a touch of the engine, or each second
//!            │
//!            └─ lock taken ── all slots once more ── TookOver ──► the writer of this store
//! ```
//!
//! A follower changes no file. Its belief of a slot is what the slot's header said when it looked; whether that is true
//! is decided by each read.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use kvik_cache::tier::{Observed, Record, SlotId};

use super::directory::{Directory, Lock, Locked};
use super::format::Header;
use super::log::{self, News, Noted};
use super::neighbours::DiskBudget;
use super::recover::{Geometry, Recovered, TakenSlots, open, open_existing, read_records, scan};
use super::slab::Slab;
use super::threads::{Change, Shared, Writer};
use super::{ChangedSlot, Completed, StoreError};

/// Interval at which a follower looks by itself.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pause between two parts of a scan of all headers, and the slots of a part.
const SCAN_PAUSE: Duration = Duration::from_millis(20);
const SCAN_SLOTS: u32 = 4096;

/// Follows the process that writes a store.
pub(super) struct Follower {
    shared: Arc<Shared>,
    changes: Receiver<Change>,
    geometry: Geometry,
    bytes_max: u64,
    /// What the engine believes of each slot: a fingerprint of its record, 0 for none.
    believed: Vec<u64>,
    /// Number of the last change in the log that was seen.
    seen: u64,
    /// The first slot that a scan in progress has not read yet.
    unscanned: Option<u32>,
}

/// The records of a store that another process writes, and where its log was before they were read.
pub(super) struct Looked {
    pub(super) slab: Option<Slab>,
    pub(super) records: Vec<(SlotId, Record)>,
    pub(super) seen: u64,
}

/// Reads what is complete of a store that another process writes. Files that are not there yet, or have another layout,
/// hold nothing.
pub(super) fn look(directory: &Directory, geometry: &Geometry) -> Looked {
    let Ok(slab) = open_existing(directory, geometry) else {
        return Looked { slab: None, records: Vec::new(), seen: 0 };
    };
    let seen = log::last_number(&slab.headers);
    let Recovered { slab, records, .. } = read_records(slab, geometry);
    Looked { slab: Some(slab), records, seen }
}

impl Follower {
    /// Follows the process `pid`, if that is known, from what was found in its store.
    pub(super) fn new(
        (shared, changes): (Arc<Shared>, Receiver<Change>),
        (geometry, bytes_max): (Geometry, u64),
        pid: Option<u32>,
        (records, seen): (&[(SlotId, Record)], u64),
    ) -> Follower {
        shared.follows.store(true, Ordering::Release);
        shared.writer_pid.store(pid.unwrap_or(0), Ordering::Relaxed);
        let mut believed = vec![0; geometry.slots as usize];
        records.iter().for_each(|(slot, record)| believed[slot.index()] = fingerprint(Some(record)));
        Follower { shared, changes, geometry, bytes_max, believed, seen, unscanned: None }
    }

    /// Follows until the store is dropped, or until this process is the one that writes.
    pub(super) fn follow(mut self) -> Option<Writer> {
        loop {
            let pause = if self.unscanned.is_some() { SCAN_PAUSE } else { LOOK_EVERY };
            // A store that does not write queues nothing but looks.
            let closed = matches!(self.changes.recv_timeout(pause), Err(RecvTimeoutError::Disconnected));
            if closed || self.shared.abandoned.load(Ordering::Relaxed) {
                return None;
            }
            self.shared.is_look_queued.store(false, Ordering::Release);
            self.look();
            match self.shared.directory.lock() {
                Ok(Locked::Here(lock)) => match self.take_over() {
                    Ok(taken) => return Some(self.into_writer(lock, taken)),
                    // The next look tries again.
                    Err(error) => tracing::debug!("disk cache: not taken over: {error}"),
                },
                Ok(Locked::Elsewhere(pid)) => {
                    self.shared.writer_pid.store(pid.unwrap_or(0), Ordering::Relaxed)
                }
                Err(error) => tracing::debug!("disk cache: {error}"),
            }
        }
    }

    /// Tells the engine what has changed, a bounded number of slots at a time.
    fn look(&mut self) {
        let Some(slab) = self.slab() else { return };
        match log::news(&slab.headers, &mut self.seen) {
            News::Slots(noted) => self.look_at(&slab, &noted),
            News::Any => self.unscanned = Some(0),
        }
        if let Some(first) = self.unscanned {
            self.scan_part(&slab, first);
        }
    }

    /// The files at their paths; opened again if others were put there. If there are none, no slot holds a block.
    fn slab(&mut self) -> Option<Arc<Slab>> {
        if let Some(slab) = self.shared.slab().filter(|slab| slab.is_at(&self.shared.directory)) {
            return Some(slab);
        }
        let slab = open_existing(&self.shared.directory, &self.geometry).ok().map(Arc::new);
        match &slab {
            Some(slab) => {
                self.seen = log::last_number(&slab.headers);
                self.unscanned = Some(0);
            }
            None => self.believe_all(|_| None, true),
        }
        self.shared.set_slab(slab.clone());
        slab
    }

    fn look_at(&mut self, slab: &Slab, noted: &[Noted]) {
        let (mut seen, slots) = (Vec::new(), self.geometry.slots);
        for &Noted { slot, is_erased } in noted.iter().filter(|noted| noted.slot.0 < slots) {
            let record = match slab.header(slot) {
                Ok(Header::Block { record, .. }) => Some(record),
                _ => None,
            };
            seen.extend(self.believe(slot, record, is_erased));
        }
        self.tell(seen);
    }

    /// Reads the headers of some slots. How a block that is gone was lost is not known: it may have been erased.
    fn scan_part(&mut self, slab: &Slab, first: u32) {
        let end = first.saturating_add(SCAN_SLOTS).min(self.geometry.slots);
        let mut found = vec![None; (end - first) as usize];
        // What cannot be read is a miss.
        let _ = scan(&slab.headers, slab.location(SlotId(first)), first..end, |slot, header| {
            if let Header::Block { record, .. } = header {
                found[(slot.0 - first) as usize] = Some(record);
            }
        });
        let slots = (first..end).map(SlotId).zip(found);
        let seen = slots.filter_map(|(slot, record)| self.believe(slot, record, true)).collect();
        self.tell(seen);
        self.unscanned = (end < self.geometry.slots).then_some(end);
    }

    /// Opens the files to write them, and tells the engine of all that is in them. Returns what the slots take on disk.
    fn take_over(&mut self) -> Result<TakenSlots, StoreError> {
        let Recovered { slab, records, taken, notes } = open(&self.shared.directory, &self.geometry)?;
        notes.iter().for_each(|note| tracing::info!("{note}"));
        let mut found = vec![None; self.geometry.slots as usize];
        records.into_iter().for_each(|(slot, record)| found[slot.index()] = Some(record));
        self.believe_all(|slot| found[slot.index()], false);
        self.shared.set_slab(Some(Arc::new(slab)));
        self.shared.follows.store(false, Ordering::Release);
        tracing::info!(
            "disk cache: the process that wrote {} has ended; this one writes it now",
            self.shared.directory.name()
        );
        Ok(taken)
    }

    fn into_writer(self, lock: Lock, taken: TakenSlots) -> Writer {
        let shared = self.shared;
        let budget = DiskBudget::new(shared.directory.clone(), self.bytes_max);
        let writer = Writer::new((Arc::clone(&shared), self.changes), self.geometry, (lock, budget), taken);
        // Only now: a deletion waits for what the writer is yet to remove.
        shared.complete(Completed::TookOver);
        writer
    }

    /// Tells the engine of all slots that hold or held a block, or only of those that have changed.
    fn believe_all(&mut self, record: impl Fn(SlotId) -> Option<Record>, only_changed: bool) {
        for first in (0..self.geometry.slots).step_by(SCAN_SLOTS as usize) {
            let slots = (first..first.saturating_add(SCAN_SLOTS).min(self.geometry.slots)).map(SlotId);
            let seen = slots.filter_map(|slot| {
                let (record, held) = (record(slot), self.believed[slot.index()] != 0);
                let seen = self.believe(slot, record, true);
                let again = (!only_changed && (held || record.is_some()))
                    .then_some(ChangedSlot { observed: Observed { slot, record }, is_erased: false });
                seen.or(again)
            });
            let seen = seen.collect();
            self.tell(seen);
        }
    }

    /// Notes the content of a slot. Returns what the engine is to be told, if it believes otherwise.
    fn believe(&mut self, slot: SlotId, record: Option<Record>, is_erased: bool) -> Option<ChangedSlot> {
        let now = fingerprint(record.as_ref());
        let before = std::mem::replace(&mut self.believed[slot.index()], now);
        let observed = Observed { slot, record };
        (before != now).then_some(ChangedSlot { observed, is_erased: is_erased && before != 0 })
    }

    fn tell(&self, seen: Vec<ChangedSlot>) {
        if !seen.is_empty() {
            self.shared.complete(Completed::Seen(seen));
        }
    }
}

/// Differs between blocks, and between a block that is pinned and one that is not. 0 for none.
fn fingerprint(record: Option<&Record>) -> u64 {
    let Some(record) = record else { return 0 };
    let identity =
        record.identity.0.as_chunks::<8>().0.iter().fold(0, |sum, &part| sum ^ u64::from_ne_bytes(part));
    (identity & !1).max(2) | u64::from(record.pinned)
}
