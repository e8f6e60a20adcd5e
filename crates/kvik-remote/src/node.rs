//! The state shared by the engine's thread and the store's own.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvik_cache::Identity;
use kvik_engine::store::Waker;
use kvik_engine::store::remote::{RemoteDone, RemoteStats};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::backend::{Backend, Retention};
use crate::config::Budget;
use crate::error::Fault;
use crate::health::Health;
use crate::known::Known;
use crate::names::{Key, Names};
use crate::removals::Removals;
use crate::seal::{Kind, Label, Sealer};
use crate::upkeep::{Upkeep, UpkeepQueue};

/// Limits of the bytes read but not yet taken by the engine, including those in flight, and of the bytes waiting to
/// be written.
pub(crate) const READ_BYTES_MAX: usize = 64 << 20;
pub(crate) const WRITE_BYTES_MAX: usize = 64 << 20;
/// Bytes per permit.
const PERMIT_BYTES: usize = 1 << 10;

/// A node's open store.
pub(crate) struct Node {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) names: Names,
    pub(crate) sealer: Sealer,
    pub(crate) health: Health,
    pub(crate) payload_bytes: usize,
    pub(crate) run_max: usize,
    pub(crate) ttl: Duration,
    pub(crate) budget: Budget,
    pub(crate) counters: Counters,
    pub(crate) known: Mutex<Known>,
    removals: Mutex<Removals>,
    /// Values to be renewed or removed in the background.
    pub(crate) upkeep: UpkeepQueue,
    pub(crate) done: Done,
    /// Bytes that are requested and have not arrived.
    pub(crate) reading_bytes: AtomicU64,
    reads: Arc<Semaphore>,
}

/// The counters behind [`RemoteStats`].
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) lookups: AtomicU64,
    pub(crate) hits: AtomicU64,
    pub(crate) read_blocks: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) written_blocks: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) dropped_blocks: AtomicU64,
    pub(crate) writing_blocks: AtomicUsize,
    pub(crate) faults: AtomicU64,
    pub(crate) corrupt: AtomicU64,
}

/// Completed operations, with the permits for their bytes.
pub(crate) struct Done {
    queue: Mutex<VecDeque<(RemoteDone, Option<OwnedSemaphorePermit>)>>,
    waker: Waker,
}

impl Node {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        names: Names,
        run_max: usize,
        config: crate::config::RemoteConfig,
    ) -> Node {
        Node {
            backend,
            names,
            sealer: Sealer::new(&config.key),
            health: Health::new(config.url, config.deadline_min),
            payload_bytes: config.payload_bytes,
            run_max,
            ttl: config.ttl,
            budget: config.budget,
            counters: Counters::default(),
            known: Mutex::default(),
            removals: Mutex::default(),
            upkeep: UpkeepQueue::default(),
            done: Done { queue: Mutex::default(), waker: config.waker },
            reading_bytes: AtomicU64::new(0),
            reads: Arc::new(Semaphore::new(READ_BYTES_MAX / PERMIT_BYTES)),
        }
    }

    pub(crate) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the use of a value, which is reported to the store in the background unless it was reported recently.
    /// Returns false if the value is unknown.
    pub(crate) fn use_known(&self, key: Key, ttl: Duration) -> bool {
        let after = self.backend.renew_after(&self.retention(ttl));
        let mut known = self.known();
        let Some(is_due) = known.is_due(&key, after) else { return false };
        if is_due && !self.upkeep.push(Upkeep::Renew(key, ttl)) {
            known.report_failed(&key);
        }
        true
    }

    pub(crate) fn removals(&self) -> MutexGuard<'_, Removals> {
        self.removals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of the run that ends with a block.
    pub(crate) fn run(&self, owner: u64, end: &Identity) -> Key {
        self.names.run(owner, end)
    }

    /// Seals a run for the store.
    pub(crate) fn seal(
        &self,
        owner: u64,
        end: &Identity,
        ttl: Duration,
        run: &[u8],
    ) -> Result<Vec<u8>, Fault> {
        let what = self.what(end);
        let label =
            Label { kind: Kind::Run, count: (run.len() / self.payload_bytes) as u32, owner, what: &what };
        let sealed = self.sealer.seal(label, ttl, run);
        sealed.ok_or_else(|| Fault::Failed("the system has no random numbers".to_owned()))
    }

    /// Opens a sealed run: returns its bytes and its time to live, if it holds exactly these blocks.
    pub(crate) fn open(
        &self,
        owner: u64,
        end: &Identity,
        blocks: usize,
        value: Vec<u8>,
    ) -> Option<(Vec<u8>, Duration)> {
        let what = self.what(end);
        let label = Label { kind: Kind::Run, count: blocks as u32, owner, what: &what };
        let opened = self.sealer.open(label, value).ok();
        opened.filter(|(run, _)| run.len() == blocks * self.payload_bytes)
    }

    fn what(&self, end: &Identity) -> [u8; 64] {
        let mut what = [0; 64];
        what[..32].copy_from_slice(self.names.space());
        what[32..].copy_from_slice(&end.0);
        what
    }

    pub(crate) fn retention(&self, ttl: Duration) -> Retention {
        Retention { ttl, total_max: self.budget.total, owner_max: self.budget.owner }
    }

    /// Waits for a permit to read `bytes`.
    pub(crate) async fn permit(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let permits = bytes.div_ceil(PERMIT_BYTES).clamp(1, READ_BYTES_MAX / PERMIT_BYTES);
        Arc::clone(&self.reads).acquire_many_owned(u32::try_from(permits).ok()?).await.ok()
    }

    pub(crate) fn stats(&self) -> RemoteStats {
        let counters = &self.counters;
        RemoteStats {
            is_up: self.health.is_up(),
            lookups: counters.lookups.load(Relaxed),
            hits: counters.hits.load(Relaxed),
            read_blocks: counters.read_blocks.load(Relaxed),
            read_bytes: counters.read_bytes.load(Relaxed),
            written_blocks: counters.written_blocks.load(Relaxed),
            written_bytes: counters.written_bytes.load(Relaxed),
            dropped_blocks: counters.dropped_blocks.load(Relaxed),
            writing_blocks: counters.writing_blocks.load(Relaxed),
            faults: counters.faults.load(Relaxed),
            corrupt: counters.corrupt.load(Relaxed),
        }
    }
}

impl Done {
    pub(crate) fn push(&self, done: RemoteDone, permit: Option<OwnedSemaphorePermit>) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back((done, permit));
        self.waker.wake();
    }

    /// Wakes the engine to look at the counters.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// The next completed operation, whose permit is released.
    pub(crate) fn pop(&self) -> Option<RemoteDone> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front().map(|(done, _permit)| done)
    }
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, by: usize) {
    counter.fetch_add(by as u64, Relaxed);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
pub(crate) mod tests {
    use super::*;
    use crate::backend::memory::Memory;
    use crate::config::{DEADLINE_MIN, FleetKey, RemoteConfig, RemoteUrl};

    /// A node over a store in memory, which nothing probes.
    pub(crate) fn node_over(memory: &Arc<Memory>) -> Arc<Node> {
        let config = RemoteConfig {
            url: RemoteUrl::parse("file:///nowhere").unwrap(),
            key: FleetKey::new([1; 32]),
            fingerprint: [2; 32],
            payload_bytes: 1000,
            ttl: Duration::from_secs(60),
            budget: Budget::default(),
            deadline_min: DEADLINE_MIN,
            waker: Waker::default(),
        };
        let names = Names::new(&config.key, &config.fingerprint, config.payload_bytes, 8);
        Arc::new(Node::new(Arc::clone(memory) as Arc<dyn Backend>, names, 8, config))
    }
}
