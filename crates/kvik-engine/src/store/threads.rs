//! The threads of a store: one writer, which keeps the order of its queue, and two readers. Where another process
//! writes, `follow` stands in the writer's place until that has ended.
//!
//! Only these threads wait for the disk. They put completed operations into a queue and wake the engine. They end when
//! the store is dropped.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use kvik_cache::Identity;
use kvik_cache::tier::{IoFault, Record, SlotId, Use, Wear};

use super::buffers::Buffer;
use super::directory::{Directory, Lock, Locked};
use super::neighbours::{DiskBudget, store_bytes};
use super::pins::Pins;
use super::recover::{Geometry, Recovered, TakenSlots, open};
use super::retries::Retries;
use super::slab::{Removal, Slab, fault, slot_bytes};
use super::wear::{WearFile, wear};
use super::{Completed, StoreError};

/// How often the writer checks that its files are still at their paths.
const PRESENCE_INTERVAL: Duration = Duration::from_secs(1);
/// Duration of the writer's pause after the first fault, and its maximum after many.
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// A command to the writer.
pub(super) enum Change {
    /// Write a block into a slot.
    Write { slot: SlotId, record: Record, payload: Buffer },
    /// Record the use of a slot's block.
    Touch { slot: SlotId, use_: Use },
    /// Pin or unpin a slot's block, as recorded under this number.
    Pin { slot: SlotId, number: u64 },
    /// Remove a slot's block.
    Remove { slot: SlotId, why: Removal },
    /// Look for what another process has written.
    Look,
}

/// A command to a reader.
pub(super) struct ReadRequest {
    pub(super) ticket: u64,
    pub(super) slot: SlotId,
    pub(super) identity: Identity,
    pub(super) into: Buffer,
}

/// State shared by the threads and the store.
pub(super) struct Shared {
    pub(super) directory: Directory,
    /// The writer replaces it if the files were removed; `None` while another process has not created them.
    pub(super) slab: RwLock<Option<Arc<Slab>>>,
    /// Whether another process writes, which may remove or replace the files.
    pub(super) follows: AtomicBool,
    /// Its id; 0 if that is unknown.
    pub(super) writer_pid: AtomicU32,
    /// Whether a [`Change::Look`] is queued.
    pub(super) is_look_queued: AtomicBool,
    pub(super) completed: Sender<Completed>,
    pub(super) wake: Box<dyn Fn() + Send + Sync>,
    /// Touches in the queue; beyond a limit they are dropped, because they are hints.
    pub(super) touches: AtomicUsize,
    pub(super) pins: Pins,
    /// Blocks that are to be erased, and to be evicted, and may still be there.
    erasing: AtomicUsize,
    evicting: AtomicUsize,
    /// Bytes written to all stores of the directory.
    wear: Mutex<Wear>,
    /// Set when the dropped store no longer waits for the threads.
    pub(super) abandoned: AtomicBool,
}

impl Shared {
    pub(super) fn new(
        directory: Directory,
        slab: Option<Slab>,
        completed: Sender<Completed>,
        wake: Box<dyn Fn() + Send + Sync>,
    ) -> Shared {
        Shared {
            wear: Mutex::new(wear(directory.root())),
            directory,
            slab: RwLock::new(slab.map(Arc::new)),
            follows: AtomicBool::new(false),
            writer_pid: AtomicU32::new(0),
            is_look_queued: AtomicBool::new(false),
            completed,
            wake,
            touches: AtomicUsize::new(0),
            pins: Pins::default(),
            erasing: AtomicUsize::new(0),
            evicting: AtomicUsize::new(0),
            abandoned: AtomicBool::new(false),
        }
    }

    pub(super) fn wear(&self) -> Wear {
        *self.wear.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_wear(&self, wear: Wear) {
        *self.wear.lock().unwrap_or_else(PoisonError::into_inner) = wear;
    }

    pub(super) fn slab(&self) -> Option<Arc<Slab>> {
        self.slab.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_slab(&self, slab: Option<Arc<Slab>>) {
        *self.slab.write().unwrap_or_else(PoisonError::into_inner) = slab;
    }

    /// Reads a block. Of files that another process has removed or replaced, nothing is read.
    fn read(&self, slot: SlotId, identity: Identity, into: &mut Buffer) -> Result<(), IoFault> {
        let slab = self.slab().ok_or(IoFault::Corrupt)?;
        if self.follows.load(Ordering::Acquire) && !slab.is_at(&self.directory) {
            return Err(IoFault::Corrupt);
        }
        slab.read(slot, identity, into)
    }

    /// Number of blocks that are to be removed and may still be there.
    pub(super) fn removing(&self, why: Removal) -> &AtomicUsize {
        match why {
            Removal::Erasure => &self.erasing,
            Removal::Eviction => &self.evicting,
        }
    }

    /// Notes that a block was removed. The engine evicts more when all it has evicted are gone.
    pub(super) fn removed(&self, why: Removal) {
        let before = self.removing(why).fetch_sub(1, Ordering::AcqRel);
        if why == Removal::Eviction && before == 1 {
            (self.wake)();
        }
    }

    /// Queues a completion and wakes the engine. A dropped store ignores it.
    pub(super) fn complete(&self, completed: Completed) {
        let _ = self.completed.send(completed);
        (self.wake)();
    }
}

/// Reads until the store is dropped. Readers take turns at the queue.
pub(super) fn read_all(shared: &Shared, reads: &Mutex<Receiver<ReadRequest>>) {
    let next = || reads.lock().unwrap_or_else(PoisonError::into_inner).recv();
    while let Ok(ReadRequest { ticket, slot, identity, mut into }) = next() {
        if shared.abandoned.load(Ordering::Relaxed) {
            break;
        }
        let started = Instant::now();
        let result = shared.read(slot, identity, &mut into).map(|()| (into, started.elapsed()));
        shared.complete(Completed::Read { ticket, slot, result });
    }
}

/// The only thread that changes the files.
pub(super) struct Writer {
    shared: Arc<Shared>,
    changes: Receiver<Change>,
    geometry: Geometry,
    lock: Lock,
    budget: DiskBudget,
    /// By slot: whether its bytes may be allocated on disk.
    written: Vec<bool>,
    /// Number of `true` values in `written`.
    written_count: u32,
    /// Slots without a block whose bytes are to be removed before anything is written.
    stale: Vec<SlotId>,
    /// Slots whose last write failed: a block that is still there is an older one, to which header changes do not
    /// apply.
    outdated: BTreeSet<SlotId>,
    /// Removals that failed.
    retries: Retries,
    backoff: Backoff,
    wear: WearFile,
    /// When the files were last seen at their paths.
    seen: Instant,
}

impl Writer {
    /// The writer of the open files of `shared`, whose lock it holds.
    pub(super) fn new(
        (shared, changes): (Arc<Shared>, Receiver<Change>),
        geometry: Geometry,
        (lock, budget): (Lock, DiskBudget),
        TakenSlots { written, stale }: TakenSlots,
    ) -> Writer {
        let wear = WearFile::open(&shared.directory);
        shared.set_wear(wear.all());
        // A deletion waits for them: they may be what it deletes.
        shared.removing(Removal::Erasure).fetch_add(stale.len(), Ordering::AcqRel);
        Writer {
            shared,
            changes,
            geometry,
            lock,
            budget,
            written_count: count(&written),
            written,
            stale,
            outdated: BTreeSet::new(),
            retries: Retries::default(),
            backoff: Backoff::default(),
            wear,
            seen: Instant::now(),
        }
    }

    /// Writes until the store is dropped and the queue is empty, or the dropped store no longer waits.
    pub(super) fn write_all(mut self) {
        self.remove_stale();
        while let Some(change) = self.next() {
            if self.shared.abandoned.load(Ordering::Relaxed) {
                break;
            }
            change.into_iter().for_each(|change| self.execute(change));
        }
        self.wear.save();
    }

    fn slab(&self) -> Arc<Slab> {
        self.shared.slab().expect("the files are open where there is a writer")
    }

    /// Waits for a change, or until failed removals are to be retried; `None` when the queue is closed.
    fn next(&mut self) -> Option<Option<Change>> {
        let Some(left) = self.retries.left(Instant::now()) else {
            return self.changes.recv().ok().map(Some);
        };
        // Changes that keep coming do not put it off.
        let change =
            if left.is_zero() { Err(RecvTimeoutError::Timeout) } else { self.changes.recv_timeout(left) };
        match change {
            Ok(change) => Some(Some(change)),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                self.remove_again();
                Some(None)
            }
        }
    }

    fn remove_stale(&mut self) {
        for slot in std::mem::take(&mut self.stale) {
            if self.shared.abandoned.load(Ordering::Relaxed) {
                break;
            }
            if let Err(error) = self.remove(slot, Removal::Erasure) {
                tracing::warn!("disk cache: slot {} keeps a part of a block for now: {error}", slot.0);
            }
        }
    }

    /// Removes what a slot without a block has of one, as soon as failed removals are tried again; unless a block is
    /// written there before.
    fn remove_later(&mut self, slot: SlotId) {
        self.shared.removing(Removal::Erasure).fetch_add(1, Ordering::AcqRel);
        if let Some(before) = self.retries.take(slot) {
            self.shared.removed(before);
        }
        self.retries.add(slot, Removal::Erasure, Instant::now());
    }

    fn remove_again(&mut self) {
        for (slot, why) in self.retries.take_all() {
            // The first failure was logged already.
            let _ = self.remove(slot, why);
        }
        self.retries.attempted(Instant::now());
    }

    /// Removes the block of a slot; a failure is retried later.
    fn remove(&mut self, slot: SlotId, why: Removal) -> io::Result<()> {
        let removed = match self.written.get(slot.index()) {
            Some(true) => self.slab().remove(slot, why),
            _ => Ok(true),
        };
        if removed.is_err() {
            self.retries.add(slot, why, Instant::now());
        }
        match removed? {
            true => self.note_freed(slot),
            // It was overwritten.
            false => self.count_written(),
        }
        self.shared.removed(why);
        Ok(())
    }

    /// Notes that the bytes of a slot are not allocated any more.
    fn note_freed(&mut self, slot: SlotId) {
        if self.written.get_mut(slot.index()).is_some_and(std::mem::take) {
            self.written_count -= 1;
        }
    }

    /// Counts the bytes of a slot as written to the disk.
    fn count_written(&mut self) {
        self.wear.add(slot_bytes(self.geometry.payload_bytes));
        self.shared.set_wear(self.wear.all());
    }

    fn execute(&mut self, change: Change) {
        match change {
            Change::Write { slot, record, payload } => {
                let result = self.write(slot, &record, &payload);
                drop(payload);
                match result {
                    Ok(_) => self.outdated.remove(&slot),
                    Err(_) => self.outdated.insert(slot),
                };
                self.shared.complete(Completed::Written { slot, result });
            }
            Change::Touch { slot, use_ } => {
                self.shared.touches.fetch_sub(1, Ordering::Relaxed);
                // A hint: if it fails, the block only looks less used than it is.
                let _ = self.change_header(slot, |slab| slab.touch(slot, &use_));
            }
            Change::Pin { slot, number } => {
                let Some(pinned) = self.shared.pins.take(slot, number) else { return };
                if let Err(error) = self.change_header(slot, |slab| slab.pin(slot, pinned)) {
                    tracing::warn!(
                        "disk cache: slot {} is pinned as before after a restart: {error}",
                        slot.0
                    );
                }
            }
            Change::Remove { slot, why } => {
                if let Some(before) = self.retries.take(slot) {
                    self.shared.removed(before);
                }
                if let Err(error) = self.remove(slot, why) {
                    tracing::warn!("disk cache: slot {} keeps its block for now: {error}", slot.0);
                }
            }
            // Queued before this process took over.
            Change::Look => {}
        }
    }

    /// Changes the header of a slot that was written before, unless its block is outdated.
    fn change_header(&self, slot: SlotId, change: impl FnOnce(&Slab) -> io::Result<()>) -> io::Result<()> {
        match self.written.get(slot.index()) {
            Some(true) if !self.outdated.contains(&slot) => change(&self.slab()),
            _ => Ok(()),
        }
    }

    fn write(&mut self, slot: SlotId, record: &Record, payload: &[u8]) -> Result<Duration, IoFault> {
        let started = Instant::now();
        if self.backoff.is_active(started) {
            return Err(IoFault::Resting);
        }
        let result = self.try_write(slot, record, payload, started);
        self.backoff.record(&result, started);
        result.map(|()| started.elapsed()).map_err(|error| error.fault())
    }

    fn try_write(
        &mut self,
        slot: SlotId,
        record: &Record,
        payload: &[u8],
        now: Instant,
    ) -> Result<(), WriteError> {
        if now.duration_since(self.seen) >= PRESENCE_INTERVAL {
            self.restore_files()?;
            self.seen = now;
        }
        self.reserve_bytes(slot)?;
        let written = self.slab().write(slot, record, payload);
        if written.is_err() {
            // No deletion would find what was written of it.
            self.remove_later(slot);
        }
        written?;
        self.count_written();
        if let Some(why) = self.retries.take(slot) {
            // The write has replaced the block that could not be removed.
            self.shared.removed(why);
        }
        Ok(())
    }

    /// Creates new files if they were removed. Their blocks are lost: reads of them miss.
    fn restore_files(&mut self) -> Result<(), WriteError> {
        let directory = &self.shared.directory;
        if !self.lock.is_in_place() {
            let Locked::Here(lock) = directory.lock()? else { return Err(WriteError::Displaced) };
            self.lock = lock;
        } else if self.slab().is_at(directory) {
            return Ok(());
        }
        let Recovered { slab, taken, .. } = open(directory, &self.geometry)?;
        tracing::warn!("disk cache: the files of {} were removed and are created again", directory.name());
        self.shared.set_slab(Some(Arc::new(slab)));
        self.written_count = count(&taken.written);
        self.written = taken.written;
        taken.stale.into_iter().for_each(|slot| self.remove_later(slot));
        Ok(())
    }

    /// Reserves the disk bytes of a slot at its first write.
    fn reserve_bytes(&mut self, slot: SlotId) -> Result<(), WriteError> {
        let written = self.written.get_mut(slot.index()).ok_or(WriteError::NoSuchSlot)?;
        if !*written {
            let slot_bytes = slot_bytes(self.geometry.payload_bytes);
            if !self.budget.admits(store_bytes(self.written_count + 1, slot_bytes)) {
                return Err(WriteError::BudgetUsed);
            }
            *written = true;
            self.written_count += 1;
        }
        Ok(())
    }
}

/// How many slots were written.
fn count(written: &[bool]) -> u32 {
    written.iter().map(|&written| u32::from(written)).sum()
}

/// Why a block was not written.
#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Store(#[from] StoreError),
    #[error("the files were removed, and another process writes those that are at their place")]
    Displaced,
    #[error("the caches of other running processes leave no room")]
    BudgetUsed,
    #[error("there is no such slot")]
    NoSuchSlot,
}

impl WriteError {
    fn fault(&self) -> IoFault {
        match self {
            WriteError::Io(error) | WriteError::Store(StoreError::Io { source: error, .. }) => fault(error),
            WriteError::BudgetUsed => IoFault::Full,
            WriteError::Store(_) | WriteError::Displaced | WriteError::NoSuchSlot => IoFault::Failed,
        }
    }
}

/// Pauses writing to a failing disk: each consecutive fault doubles the pause.
#[derive(Debug, Default)]
struct Backoff {
    until: Option<Instant>,
    pause: Duration,
}

impl Backoff {
    fn is_active(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Records the result of a write, and logs once when faults begin and once when they end.
    fn record(&mut self, result: &Result<(), WriteError>, now: Instant) {
        match result {
            Ok(()) if self.until.take().is_some() => {
                tracing::info!("disk cache: writing again");
                self.pause = Duration::ZERO;
            }
            Ok(()) => {}
            Err(error) => {
                if self.until.is_none() {
                    tracing::warn!("disk cache: not writing for a while: {error}");
                }
                self.pause = (self.pause * 2).clamp(BACKOFF_FIRST, BACKOFF_MAX);
                self.until = Some(now + self.pause);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_faults_double_the_pause_and_a_success_ends_it() {
        let mut backoff = Backoff::default();
        let mut now = Instant::now();
        for pause_s in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert!(!backoff.is_active(now));
            backoff.record(&Err(WriteError::BudgetUsed), now);
            assert!(backoff.is_active(now + Duration::from_millis(pause_s * 1000 - 1)));
            now += Duration::from_secs(pause_s);
        }
        backoff.record(&Ok(()), now);
        assert!(!backoff.is_active(now));
        backoff.record(&Err(WriteError::BudgetUsed), now);
        assert!(!backoff.is_active(now + BACKOFF_FIRST));
    }
}
