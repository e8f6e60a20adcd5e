//! The disk tier's hands: blocks on disk, and the threads that write and read them.
//!
//! It decides nothing. `kvik_cache::tier` says what is written, read, touched and erased, and in
//! which slot; this carries it out, reports how it went, and at the start says what is there.
//! Whatever bytes the files hold, a block that is read is the block that was asked for.
//!
//! ```text
//!    engine's thread              │ threads of the store
//!    write, touch, erase ─────────┼──► writer ──┐
//!    read ────────────────────────┼──► readers ─┼──► slab: headers, payloads
//!    completed ◄──────────────────┼─────────────┘         (docs/format.md)
//! ```
//!
//! No call on the left waits for the disk. [`Buffer`]s bound both queues and their memory.

mod buffers;
mod directory;
mod format;
mod neighbours;
mod recover;
mod slab;
#[cfg(test)]
mod tests;
mod threads;
mod waker;

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, RwLock};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use kvik_cache::Identity;
use kvik_cache::tier::{IoFault, Record, Relation, SlotId, Use};

pub use buffers::{Buffer, Buffers};
pub use neighbours::bytes_allowed;
pub use waker::Waker;

use directory::Directory;
use neighbours::{Room, store_bytes};
use recover::{Geometry, Recovered};
use slab::slot_bytes;
use threads::{Change, Read, Rest, Shared, Writer};

/// Slots a store has at the most: 256 MiB of headers are read at the start.
const SLOTS_MAX: u32 = 1 << 20;
/// Touches that may wait for the writer.
const TOUCHES_MAX: usize = 8192;
/// Enough for an SSD to work on one read while the checksum of another is taken.
const READERS: usize = 2;
/// How long a store that is dropped waits for what it was told to write.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// What a store is opened for.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// Directory of all stores, of this model and of others. Made when it is missing.
    pub dir: PathBuf,
    /// Bytes of disk for all stores in `dir` together.
    pub bytes_max: u64,
    /// Digest of the model.
    pub model: [u8; 32],
    /// Name of the KV format, and of whatever else decides about the bits of keys and values.
    pub kv_format: String,
    /// Bytes of one block's keys and values.
    pub payload_bytes: usize,
    /// Buffers, of `payload_bytes` each: so many reads and writes can wait.
    pub buffers: usize,
}

/// A store, and what was found in it.
#[derive(Debug)]
pub struct Opened {
    /// The store.
    pub store: Store,
    /// How many slots it has, from 0 up.
    pub slots: u32,
    /// Blocks that are in it, by slot; each identity once. The other slots are free.
    pub records: Vec<(SlotId, Record)>,
    /// What happened that an operator may want to know.
    pub notes: Vec<String>,
    /// Lineages of blocks in the stores of other models and formats, 65,536 at the most.
    pub other: Vec<(Relation, u64)>,
}

/// What a store has done.
#[derive(Debug)]
#[non_exhaustive]
pub enum Completed {
    /// An answer to [`Store::write`].
    Written {
        /// The slot that was written; it holds nothing after a fault.
        slot: SlotId,
        /// How long it took, without waiting in the queue.
        result: Result<Duration, IoFault>,
    },
    /// An answer to [`Store::read`].
    Read {
        /// As it was given.
        ticket: u64,
        /// The slot that was read.
        slot: SlotId,
        /// The block's bytes, and how long it took without waiting in the queue.
        result: Result<(Buffer, Duration), IoFault>,
    },
}

/// Why there is no store. A server then serves without one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another process uses the store of this model and KV format.
    #[error("{} is in use by another process; give each its own directory, or stop the other", path.display())]
    InUse {
        /// The lock.
        path: PathBuf,
    },
    /// The directory or a file in it cannot be made or used.
    #[error("{}: {source}; choose a directory that can be written", path.display())]
    Io {
        /// What was being used.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Not one block fits.
    #[error(
        "{bytes_max} bytes of disk hold no block, which takes {needed}; allow more, or turn the disk cache off"
    )]
    TooSmall {
        /// The limit that was given.
        bytes_max: u64,
        /// The least that is of use.
        needed: u64,
    },
}

impl StoreError {
    /// Names the path to an error of the system.
    fn io(path: &Path) -> impl Fn(std::io::Error) -> StoreError {
        move |source| StoreError::Io { path: path.to_owned(), source }
    }
}

/// Blocks on disk. Used by one thread, which it never keeps waiting; dropped, it waits a moment
/// for what is still to be written.
///
/// The caller sees to it that a slot is read only when its write is completed, and written only
/// when its reads are.
pub struct Store {
    buffers: Buffers,
    shared: Arc<Shared>,
    completed: Receiver<Completed>,
    /// `None` only while being dropped.
    queues: Option<Queues>,
    threads: Vec<JoinHandle<()>>,
    /// Disconnected when all threads have ended.
    ended: Receiver<Infallible>,
}

/// The ways to the threads.
struct Queues {
    changes: Sender<Change>,
    reads: Sender<Read>,
}

impl Store {
    /// Opens the store of a model and KV format, makes it where there is none, and starts its
    /// threads. `wake` is called on one of them whenever there is something
    /// [`completed`](Store::completed).
    ///
    /// # Errors
    /// When another process has it, when files cannot be made, and when no block would fit. What
    /// existing files hold is never an error: what is not understood is replaced.
    pub fn open(config: &StoreConfig, wake: impl Fn() + Send + Sync + 'static) -> Result<Opened, StoreError> {
        let geometry = geometry(config)?;
        let directory = Directory::new(&config.dir, &geometry.fingerprint);
        let lock = directory.lock()?;
        let other = neighbours::lineages(&directory, &config.model);
        let Recovered { slab, records, written, notes } = recover::open(&directory, &geometry)?;
        let (sender, completed) = channel();
        let shared = Arc::new(Shared {
            slab: RwLock::new(Arc::new(slab)),
            completed: sender,
            wake: Box::new(wake),
            touches: AtomicUsize::new(0),
            abandoned: AtomicBool::new(false),
        });
        let (changes, changes_waiting) = channel();
        let writer = Writer {
            shared: Arc::clone(&shared),
            changes: changes_waiting,
            room: Room::new(directory.clone(), config.bytes_max),
            directory,
            geometry,
            lock,
            written_count: written.iter().map(|&written| u32::from(written)).sum(),
            written,
            rest: Rest::default(),
            seen: Instant::now(),
        };
        let (reads, reads_waiting) = channel();
        let (threads, ended) = start(writer, &shared, reads_waiting).map_err(StoreError::io(&config.dir))?;
        let buffers = Buffers::new(config.buffers, config.payload_bytes);
        let queues = Some(Queues { changes, reads });
        let store = Store { buffers, shared, completed, queues, threads, ended };
        Ok(Opened { store, slots: geometry.slots, records, notes, other })
    }

    /// A buffer for the bytes of one block, whatever they were before. `None` while all are in
    /// use, by the queues or by whoever holds a block that was read.
    pub fn buffer(&mut self) -> Option<Buffer> {
        self.buffers.take()
    }

    /// Writes a block into a slot, over whatever it holds. `record.identity` must be the child of
    /// `record.parent` with its tokens. Answered by [`Completed::Written`].
    pub fn write(&mut self, slot: SlotId, record: &Record, payload: Buffer) {
        let change = Change::Write { slot, record: *record, payload };
        if !self.tell(change) {
            self.shared.complete(Completed::Written { slot, result: Err(IoFault::Failed) });
        }
    }

    /// Reads the block `identity` from a slot. Answered by [`Completed::Read`] with `ticket`.
    pub fn read(&mut self, ticket: u64, slot: SlotId, identity: Identity, into: Buffer) {
        let read = Read { ticket, slot, identity, into };
        let queues = self.queues.as_ref().expect("there until the store is dropped");
        if queues.reads.send(read).is_err() {
            self.shared.complete(Completed::Read { ticket, slot, result: Err(IoFault::Failed) });
        }
    }

    /// Notes how a slot's block is used. A hint: it is not answered, and may be lost.
    pub fn touch(&mut self, slot: SlotId, use_: Use) {
        if self.shared.touches.fetch_add(1, Ordering::Relaxed) >= TOUCHES_MAX
            || !self.tell(Change::Touch { slot, use_ })
        {
            self.shared.touches.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Notes that a slot's block is pinned, or no longer, for the next start. Not answered.
    pub fn pin(&mut self, slot: SlotId, pinned: bool) {
        // Without a writer nothing reaches the disk, and it has said why.
        self.tell(Change::Pin { slot, pinned });
    }

    /// Makes a slot hold nothing. Not answered; on a failing disk the block may be found again at
    /// the next start.
    pub fn erase(&mut self, slot: SlotId) {
        self.tell(Change::Erase { slot });
    }

    /// The next answer, if there is one. Never waits.
    pub fn completed(&mut self) -> Option<Completed> {
        self.completed.try_recv().ok()
    }

    /// Tells the writer; whether it is there to be told.
    fn tell(&self, change: Change) -> bool {
        let queues = self.queues.as_ref().expect("there until the store is dropped");
        queues.changes.send(change).is_ok()
    }
}

/// What the files must be like, and how many slots fit into the bytes that are allowed.
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

/// Starts the writer and the readers. The receiver is disconnected when all have ended.
fn start(
    writer: Writer,
    shared: &Arc<Shared>,
    reads: Receiver<Read>,
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
        writer.write_all();
    })?);
    Ok((threads, ended))
}

impl Drop for Store {
    fn drop(&mut self) {
        self.queues = None;
        match self.ended.recv_timeout(DRAIN_MAX) {
            // They have let go of the lock as well, once they are joined.
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
