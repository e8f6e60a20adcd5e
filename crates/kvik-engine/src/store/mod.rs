//! The disk tier's I/O: blocks on disk, and the threads that write and read them.
//!
//! The store makes no decisions. `kvik_cache::tier` decides what is written, read, touched and erased, and in
//! which slot; the store executes that, reports the results, and lists the stored blocks when it opens.
//! Whatever bytes the files hold, a read returns the requested block or an error.
//!
//! ```text
//!    engine's thread              │ threads of the store
//!    write, touch, erase ─────────┼──► writer ──┐
//!    read ────────────────────────┼──► readers ─┼──► slab: headers, payloads
//!    completed ◄──────────────────┼─────────────┘         (docs/format.md)
//! ```
//!
//! One store at a time writes the files of a directory. A store that finds them locked reads them, reports what the
//! other one changes, and takes over when that has ended (`follow`).
//!
//! No call on the left waits for the disk, even if the disk never answers. [`Buffer`]s bound both queues and their
//! memory: the number of queued writes per slot is bounded by the number of buffers, a block is removed at most once
//! between two writes of its slot, and only its last pin change is queued.

pub(crate) mod answer_log;
mod at_rest;
mod block_store;
mod buffers;
mod directory;
mod follow;
mod format;
mod host;
mod log;
mod neighbours;
mod pins;
mod recover;
pub mod remote;
mod retries;
mod slab;
mod system;
#[cfg(test)]
mod tests;
mod threads;
mod waker;
mod wear;

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use kvik_cache::Identity;
use kvik_cache::tier::{IoFault, Observed, Record, Relation, SlotId, Use, Wear};

pub use at_rest::{AtRest, Picked, erase_answers_at_rest, erase_at_rest};
pub use block_store::BlockStore;
pub use buffers::{Buffer, Buffers};
pub use host::HostStore;
pub use neighbours::{bytes_allowed, writers};
pub use waker::Waker;
pub use wear::wear;

use crate::stats::DiskRole;
use directory::{Directory, Lock, Locked};
use follow::{Follower, Looked};
use neighbours::{DiskBudget, store_bytes};
use recover::{Geometry, Recovered, TakenSlots};
use slab::{Removal, slot_bytes};
use threads::{Change, ReadRequest, Shared, Writer};

/// Maximum slots of a store: 256 MiB of headers are read at the start.
const SLOTS_MAX: u32 = 1 << 20;
/// Maximum touches that wait for the writer.
const TOUCHES_MAX: usize = 8192;
/// Two readers let an SSD work on one read while the checksum of another is computed.
const READERS: usize = 2;
/// Minimum interval at which a store that another process writes is looked at while the engine works.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// How long dropping a store waits for its queued writes.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// How to open a store.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// Directory of all stores, of this model and of others. Created if it is missing.
    pub dir: PathBuf,
    /// Bytes of disk for all stores in `dir` together.
    pub bytes_max: u64,
    /// Digest of the model.
    pub model: [u8; 32],
    /// Name of the KV format, and of anything else that determines the bits of keys and values.
    pub kv_format: String,
    /// Bytes of one block's keys and values.
    pub payload_bytes: usize,
    /// Buffers of `payload_bytes` each, which bound how many reads and writes can wait.
    pub buffers: usize,
}

/// An open store and its contents.
#[derive(Debug)]
pub struct Opened {
    /// The store.
    pub store: Store,
    /// Number of slots; their ids start at 0.
    pub slots: u32,
    /// Its blocks by slot, each identity once. The other slots are free.
    pub records: Vec<(SlotId, Record)>,
    /// Messages for the operator.
    pub notes: Vec<String>,
    /// Content keys of blocks in related stores, those of other models and formats; at most 65,536.
    pub related: Vec<(Relation, u64)>,
}

/// A completed operation.
#[derive(Debug)]
#[non_exhaustive]
pub enum Completed {
    /// Completes [`BlockStore::write`].
    Written {
        /// The written slot; it holds no block after a fault.
        slot: SlotId,
        /// Time it took, without the wait in the queue.
        result: Result<Duration, IoFault>,
    },
    /// Completes [`BlockStore::read`].
    Read {
        /// As given to [`BlockStore::read`].
        ticket: u64,
        /// The slot that was read.
        slot: SlotId,
        /// The block's bytes, and the time it took without the wait in the queue.
        result: Result<(Buffer, Duration), IoFault>,
    },
    /// Slots that another process, which writes the store, has changed.
    Seen(Vec<ChangedSlot>),
    /// The store writes from now on: the other process has ended, and all slots were [`Seen`](Completed::Seen) as they
    /// are.
    TookOver,
}

/// A slot that another process has changed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChangedSlot {
    /// Its content.
    pub observed: Observed,
    /// Whether the block that it held was erased, and must not be used wherever there is a copy of it; otherwise it had
    /// to make room. If that cannot be known, it counts as erased.
    pub is_erased: bool,
}

/// Why a store cannot be opened. A server then runs without it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The directory or a file in it cannot be created or used.
    #[error("{}: {source}; choose a directory that can be written", path.display())]
    Io {
        /// The directory or file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The limit holds no block.
    #[error(
        "{bytes_max} bytes of disk hold no block, which takes {needed}; allow more, free space (a tenth of it is \
         used at most), or turn the disk cache off"
    )]
    TooSmall {
        /// The configured limit.
        bytes_max: u64,
        /// Bytes that one block needs.
        needed: u64,
    },
}

impl StoreError {
    /// Adds the path to an I/O error.
    fn io(path: &Path) -> impl Fn(std::io::Error) -> StoreError {
        move |source| StoreError::Io { path: path.to_owned(), source }
    }
}

/// Blocks on disk. One thread uses the store, and no call blocks it; dropping the store waits at most
/// two seconds for queued writes.
///
/// As long as another store writes the same files, this one only reads: it writes, touches, pins and erases nothing.
///
/// The caller ensures that a slot is read only after its write has completed, and written only after
/// its reads have.
pub struct Store {
    buffers: Buffers,
    shared: Arc<Shared>,
    completed: Receiver<Completed>,
    /// Whether this store writes, and not another one.
    writes: bool,
    /// When it was last looked at what another one has written.
    looked: Instant,
    /// `None` only while the store is being dropped.
    queues: Option<Queues>,
    threads: Vec<JoinHandle<()>>,
    /// Disconnects when all threads have ended.
    ended: Receiver<Infallible>,
}

/// The channels to the threads.
struct Queues {
    changes: Sender<Change>,
    reads: Sender<ReadRequest>,
}

impl Store {
    /// Opens or creates the store of a model and KV format, and starts its threads. They call `wake` whenever
    /// an operation has [`completed`](BlockStore::completed). If another process, or another store of this one, writes it
    /// already, it is opened for reading, at once.
    ///
    /// # Errors
    /// If the system fails to open, read or create files, or if no block would fit. The content of existing files is never
    /// an error: files that hold something else are replaced.
    pub fn open(config: &StoreConfig, wake: impl Fn() + Send + Sync + 'static) -> Result<Opened, StoreError> {
        let geometry = geometry(config)?;
        let directory = Directory::new(&config.dir, &geometry.fingerprint);
        let (slab, records, notes, begun) = match directory.lock()? {
            Locked::Here(lock) => {
                let Recovered { slab, records, taken, notes } = recover::open(&directory, &geometry)?;
                (Some(slab), records, notes, Begun::Writing(lock, taken))
            }
            Locked::Elsewhere(pid) => {
                let Looked { slab, records, seen } = follow::look(&directory, &geometry);
                (slab, records, Vec::new(), Begun::Reading { pid, seen })
            }
        };
        let related = neighbours::content_keys(&directory, &config.model);
        answer_log::remove_orphans(&config.dir);
        let (sender, completed) = channel();
        let shared = Arc::new(Shared::new(directory, slab, sender, Box::new(wake)));
        let (changes, changes_waiting) = channel();
        let ends = (Arc::clone(&shared), changes_waiting);
        let (writes, role) = match begun {
            Begun::Writing(lock, taken) => {
                let budget = DiskBudget::new(shared.directory.clone(), config.bytes_max);
                (true, Role::Writes(Box::new(Writer::new(ends, geometry, (lock, budget), taken))))
            }
            Begun::Reading { pid, seen } => {
                let layout = (geometry, config.bytes_max);
                (false, Role::Follows(Follower::new(ends, layout, pid, (&records, seen))))
            }
        };
        let (reads, reads_waiting) = channel();
        let (threads, ended) = start(role, &shared, reads_waiting).map_err(StoreError::io(&config.dir))?;
        let buffers = Buffers::new(config.buffers, config.payload_bytes);
        let queues = Some(Queues { changes, reads });
        let looked = Instant::now();
        let store = Store { buffers, shared, completed, writes, looked, queues, threads, ended };
        Ok(Opened { store, slots: geometry.slots, records, notes, related })
    }

    /// Asks for what another process has written in the meantime, unless that was done a moment ago.
    fn look(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.looked) >= LOOK_INTERVAL
            && !self.shared.is_look_queued.swap(true, Ordering::AcqRel)
        {
            self.looked = now;
            let _ = self.changes().send(Change::Look);
        }
    }

    /// Queues a change; returns `false` if another store writes, or the writer has ended.
    fn send(&self, change: Change) -> bool {
        self.writes && self.changes().send(change).is_ok()
    }

    /// Queues the removal of a slot's block, which is counted until it is done.
    fn remove(&self, slot: SlotId, why: Removal) {
        self.shared.pins.forget(slot);
        self.shared.removing(why).fetch_add(1, Ordering::AcqRel);
        if !self.send(Change::Remove { slot, why }) {
            self.shared.removed(why);
        }
    }

    fn changes(&self) -> &Sender<Change> {
        &self.queues.as_ref().expect("the queues exist until the store is dropped").changes
    }
}

impl BlockStore for Store {
    fn answers(&self) -> Option<PathBuf> {
        Some(self.shared.directory.answers())
    }

    fn wear(&self) -> Wear {
        self.shared.wear()
    }

    fn role(&self) -> DiskRole {
        match self.writes {
            true => DiskRole::Writer,
            false => {
                let pid = self.shared.writer_pid.load(Ordering::Relaxed);
                DiskRole::Reader { of: Some(pid).filter(|&pid| pid != 0) }
            }
        }
    }

    fn payload_bytes(&self) -> usize {
        self.buffers.payload_bytes()
    }

    fn buffer(&mut self) -> Option<Buffer> {
        self.buffers.take()
    }

    fn trim(&mut self) {
        self.buffers.trim();
    }

    fn write(&mut self, slot: SlotId, record: &Record, payload: Buffer) {
        self.shared.pins.forget(slot);
        let change = Change::Write { slot, record: *record, payload };
        if !self.send(change) {
            self.shared.complete(Completed::Written { slot, result: Err(IoFault::Failed) });
        }
    }

    fn read(&mut self, ticket: u64, slot: SlotId, identity: Identity, into: Buffer) {
        let read = ReadRequest { ticket, slot, identity, into };
        let queues = self.queues.as_ref().expect("the queues exist until the store is dropped");
        if queues.reads.send(read).is_err() {
            self.shared.complete(Completed::Read { ticket, slot, result: Err(IoFault::Failed) });
        }
    }

    fn touch(&mut self, slot: SlotId, use_: Use) {
        if self.shared.touches.fetch_add(1, Ordering::Relaxed) >= TOUCHES_MAX
            || !self.send(Change::Touch { slot, use_ })
        {
            self.shared.touches.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn pin(&mut self, slot: SlotId, pinned: bool) {
        if !self.writes {
            return;
        }
        if let Some(number) = self.shared.pins.want(slot, pinned) {
            // If the writer has ended, it has logged why.
            self.send(Change::Pin { slot, number });
        }
    }

    fn erase(&mut self, slot: SlotId) {
        self.remove(slot, Removal::Erasure);
    }

    fn erasing(&self) -> usize {
        self.shared.removing(Removal::Erasure).load(Ordering::Acquire)
    }

    fn evict(&mut self, slot: SlotId) {
        self.remove(slot, Removal::Eviction);
    }

    fn evicting(&self) -> usize {
        self.shared.removing(Removal::Eviction).load(Ordering::Acquire)
    }

    fn completed(&mut self) -> Option<Completed> {
        if !self.writes {
            self.look();
        }
        let completed = self.completed.try_recv().ok()?;
        self.writes |= matches!(completed, Completed::TookOver);
        Some(completed)
    }
}

/// How a store begins.
enum Begun {
    /// It holds the lock.
    Writing(Lock, TakenSlots),
    /// Another one holds the lock: this process, if it is known. Changes up to number `seen` are known.
    Reading { pid: Option<u32>, seen: u64 },
}

/// The thread that changes the files, or follows the process that does.
enum Role {
    Writes(Box<Writer>),
    Follows(Follower),
}

/// The required layout of the files, and how many slots fit into the allowed bytes.
fn geometry(config: &StoreConfig) -> Result<Geometry, StoreError> {
    let payload_bytes = config.payload_bytes as u64;
    let slot_bytes = slot_bytes(payload_bytes);
    let slots = config.bytes_max.saturating_sub(store_bytes(0, slot_bytes)) / slot_bytes;
    if slots == 0 {
        let (bytes_max, needed) = (config.bytes_max, store_bytes(1, slot_bytes));
        return Err(StoreError::TooSmall { bytes_max, needed });
    }
    let slots = u32::try_from(slots).map_or(SLOTS_MAX, |slots| slots.min(SLOTS_MAX));
    let fingerprint = format::fingerprint(&config.model, &config.kv_format);
    Ok(Geometry { fingerprint, model: config.model, payload_bytes, slots })
}

/// Starts the writer or follower and the readers. The receiver disconnects when all have ended.
fn start(
    role: Role,
    shared: &Arc<Shared>,
    reads: Receiver<ReadRequest>,
) -> std::io::Result<(Vec<JoinHandle<()>>, Receiver<Infallible>)> {
    let (alive, ended) = channel();
    let mut threads = Vec::new();
    let reads = Arc::new(Mutex::new(reads));
    for _ in 0..READERS {
        let (shared, reads, alive) = (Arc::clone(shared), Arc::clone(&reads), alive.clone());
        threads.push(Builder::new().name("kvik-store-read".to_owned()).spawn(move || {
            let _alive: Sender<Infallible> = alive;
            threads::read_all(&shared, &reads);
        })?);
    }
    threads.push(Builder::new().name("kvik-store-write".to_owned()).spawn(move || {
        let _alive: Sender<Infallible> = alive;
        let writer = match role {
            Role::Writes(writer) => Some(*writer),
            Role::Follows(follower) => follower.follow(),
        };
        if let Some(writer) = writer {
            writer.write_all();
        }
    })?);
    Ok((threads, ended))
}

impl Drop for Store {
    fn drop(&mut self) {
        self.queues = None;
        match self.ended.recv_timeout(DRAIN_MAX) {
            // Joining the threads also releases the lock.
            Err(RecvTimeoutError::Disconnected) => {
                for thread in self.threads.drain(..) {
                    let _ = thread.join();
                }
            }
            _ => self.shared.abandoned.store(true, Ordering::Relaxed),
        }
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("buffers", &self.buffers).finish_non_exhaustive()
    }
}
