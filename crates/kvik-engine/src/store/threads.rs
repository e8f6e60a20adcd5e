//! The threads of a store: one writes, in the order it is told; two read.
//!
//! They alone wait for the disk. What they have done goes into a queue, and whoever wants to know
//! is woken. They end when the store is dropped.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use kvik_cache::Identity;
use kvik_cache::tier::{IoFault, Record, SlotId, Use};

use super::buffers::Buffer;
use super::directory::{Directory, Lock};
use super::neighbours::{Room, store_bytes};
use super::recover::{Geometry, open};
use super::slab::{Slab, fault, slot_bytes};
use super::{Completed, StoreError};

/// How often the writer looks whether its files are still where they were.
const PRESENCE_INTERVAL: Duration = Duration::from_secs(1);
/// How long nothing is written after the first fault, and at the most after many.
const REST_FIRST: Duration = Duration::from_secs(1);
const REST_LONGEST: Duration = Duration::from_secs(60);

/// What the writer is told.
pub(super) enum Change {
    /// Put a block into a slot.
    Write { slot: SlotId, record: Record, payload: Buffer },
    /// Note how a slot's block is used.
    Touch { slot: SlotId, use_: Use },
    /// Pin a slot's block, or no longer.
    Pin { slot: SlotId, pinned: bool },
    /// Make a slot hold nothing.
    Erase { slot: SlotId },
}

/// What a reader is told.
pub(super) struct Read {
    pub(super) ticket: u64,
    pub(super) slot: SlotId,
    pub(super) identity: Identity,
    pub(super) into: Buffer,
}

/// What the threads share with each other and with the store.
pub(super) struct Shared {
    /// Replaced by the writer when its files have gone.
    pub(super) slab: RwLock<Arc<Slab>>,
    pub(super) completed: Sender<Completed>,
    pub(super) wake: Box<dyn Fn() + Send + Sync>,
    /// Touches that wait; beyond a limit they are dropped, being hints.
    pub(super) touches: AtomicUsize,
    /// Set when the store is gone and nobody waits any longer.
    pub(super) abandoned: AtomicBool,
}

impl Shared {
    fn slab(&self) -> Arc<Slab> {
        Arc::clone(&self.slab.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Hands out what was done. The store may be gone: then nobody is interested.
    pub(super) fn complete(&self, completed: Completed) {
        let _ = self.completed.send(completed);
        (self.wake)();
    }
}

/// Reads until the store is gone. Readers take turns at the queue.
pub(super) fn read_all(shared: &Shared, reads: &Mutex<Receiver<Read>>) {
    let next = || reads.lock().unwrap_or_else(PoisonError::into_inner).recv();
    while let Ok(Read { ticket, slot, identity, mut into }) = next() {
        if shared.abandoned.load(Ordering::Relaxed) {
            break;
        }
        let started = Instant::now();
        let result = shared.slab().read(slot, identity, &mut into).map(|()| (into, started.elapsed()));
        shared.complete(Completed::Read { ticket, slot, result });
    }
}

/// The one thread that changes the files.
pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
    pub(super) changes: Receiver<Change>,
    pub(super) directory: Directory,
    pub(super) geometry: Geometry,
    pub(super) lock: Lock,
    pub(super) room: Room,
    /// By slot: whether its bytes may be allocated on disk.
    pub(super) written: Vec<bool>,
    /// How many of them are.
    pub(super) written_count: u32,
    pub(super) rest: Rest,
    /// When the files were last seen where they belong.
    pub(super) seen: Instant,
}

impl Writer {
    /// Writes until the store is gone and everything is written, or nobody waits any longer.
    pub(super) fn write_all(mut self) {
        while let Ok(change) = self.changes.recv() {
            if self.shared.abandoned.load(Ordering::Relaxed) {
                break;
            }
            self.carry_out(change);
        }
    }

    fn carry_out(&mut self, change: Change) {
        match change {
            Change::Write { slot, record, payload } => {
                let result = self.write(slot, &record, &payload);
                drop(payload);
                self.shared.complete(Completed::Written { slot, result });
            }
            Change::Touch { slot, use_ } => {
                self.shared.touches.fetch_sub(1, Ordering::Relaxed);
                // A hint: without it the block only looks less used than it is.
                let _ = self.change_header(slot, |slab| slab.touch(slot, &use_));
            }
            Change::Pin { slot, pinned } => {
                if let Err(error) = self.change_header(slot, |slab| slab.pin(slot, pinned)) {
                    tracing::warn!(
                        "disk cache: slot {} is pinned as before after a restart: {error}",
                        slot.0
                    );
                }
            }
            Change::Erase { slot } => {
                if let Err(error) = self.change_header(slot, |slab| slab.vacate(slot)) {
                    tracing::warn!(
                        "disk cache: slot {} keeps its block until it is rewritten: {error}",
                        slot.0
                    );
                }
            }
        }
    }

    /// Changes the header of a slot that has one.
    fn change_header(&self, slot: SlotId, change: impl FnOnce(&Slab) -> io::Result<()>) -> io::Result<()> {
        match self.written.get(slot.index()) {
            Some(true) => change(&self.shared.slab()),
            _ => Ok(()),
        }
    }

    fn write(&mut self, slot: SlotId, record: &Record, payload: &[u8]) -> Result<Duration, IoFault> {
        let started = Instant::now();
        if self.rest.is_on(started) {
            return Err(IoFault::Resting);
        }
        let result = self.try_write(slot, record, payload, started);
        self.rest.learn(&result, started);
        result.map(|()| started.elapsed()).map_err(|trouble| trouble.fault())
    }

    fn try_write(
        &mut self,
        slot: SlotId,
        record: &Record,
        payload: &[u8],
        now: Instant,
    ) -> Result<(), Trouble> {
        if now.duration_since(self.seen) >= PRESENCE_INTERVAL {
            self.stay_in_place()?;
            self.seen = now;
        }
        self.take_room(slot)?;
        Ok(self.shared.slab().write(slot, record, payload)?)
    }

    /// Makes new files when somebody has removed ours. What was in them is lost: reads of it miss.
    fn stay_in_place(&mut self) -> Result<(), Trouble> {
        if !self.lock.is_in_place() {
            self.lock = self.directory.lock()?;
        } else if self.shared.slab().is_at(&self.directory) {
            return Ok(());
        }
        let opened = open(&self.directory, &self.geometry)?;
        tracing::warn!("disk cache: the files of {} had gone and are new", self.directory.name());
        self.written_count = opened.written.iter().map(|&written| u32::from(written)).sum();
        self.written = opened.written;
        *self.shared.slab.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(opened.slab);
        Ok(())
    }

    /// Sees to it that a slot that has never been written may take its bytes of disk.
    fn take_room(&mut self, slot: SlotId) -> Result<(), Trouble> {
        let written = self.written.get_mut(slot.index()).ok_or(Trouble::NoSuchSlot)?;
        if !*written {
            let slot_bytes = slot_bytes(self.geometry.payload_bytes);
            if !self.room.admits(store_bytes(self.written_count + 1, slot_bytes)) {
                return Err(Trouble::NoRoom);
            }
            *written = true;
            self.written_count += 1;
        }
        Ok(())
    }
}

/// Why a block was not written.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Store(#[from] StoreError),
    #[error("the caches of other running processes leave no room")]
    NoRoom,
    #[error("there is no such slot")]
    NoSuchSlot,
}

impl Trouble {
    fn fault(&self) -> IoFault {
        match self {
            Trouble::Io(error) | Trouble::Store(StoreError::Io { source: error, .. }) => fault(error),
            Trouble::NoRoom => IoFault::Full,
            Trouble::Store(_) | Trouble::NoSuchSlot => IoFault::Failed,
        }
    }
}

/// Keeps the writer from a disk that fails: each fault in a row doubles the pause after it.
#[derive(Debug, Default)]
pub(super) struct Rest {
    until: Option<Instant>,
    pause: Duration,
}

impl Rest {
    fn is_on(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Takes note of an attempt, and says once when faults begin and once when they end.
    fn learn(&mut self, result: &Result<(), Trouble>, now: Instant) {
        match result {
            Ok(()) if self.until.take().is_some() => {
                tracing::info!("disk cache: writing again");
                self.pause = Duration::ZERO;
            }
            Ok(()) => {}
            Err(trouble) => {
                if self.until.is_none() {
                    tracing::warn!("disk cache: not writing for a while: {trouble}");
                }
                self.pause = (self.pause * 2).clamp(REST_FIRST, REST_LONGEST);
                self.until = Some(now + self.pause);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_in_a_row_double_the_pause_and_success_ends_it() {
        let mut rest = Rest::default();
        let mut now = Instant::now();
        for pause_s in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert!(!rest.is_on(now));
            rest.learn(&Err(Trouble::NoRoom), now);
            assert!(rest.is_on(now + Duration::from_millis(pause_s * 1000 - 1)));
            now += Duration::from_secs(pause_s);
        }
        rest.learn(&Ok(()), now);
        assert!(!rest.is_on(now));
        rest.learn(&Err(Trouble::NoRoom), now);
        assert!(!rest.is_on(now + REST_FIRST));
    }
}
