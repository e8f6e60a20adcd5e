//! The engine's status, published by the worker for other threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::schedule::Scheduler;
use crate::stats::EngineStats;

/// Status that the worker publishes.
#[derive(Clone)]
pub(crate) struct Board {
    block_bytes: usize,
    /// Requests accepted, and requests that have left the queue. The difference includes requests
    /// on their way to the worker.
    pub(super) accepted: Arc<AtomicU64>,
    pub(super) departed: Arc<AtomicU64>,
    snapshot: Arc<Mutex<Snapshot>>,
}

#[derive(Clone, Copy)]
pub(super) struct Snapshot {
    pub(super) stats: EngineStats,
    /// Mean running time of a request, after the first has ended.
    pub(super) service: Option<Duration>,
}

impl Board {
    pub(crate) fn new(scheduler: &Scheduler, block_bytes: usize) -> Board {
        let snapshot = Arc::new(Mutex::new(Snapshot::of(scheduler, block_bytes)));
        Board { block_bytes, accepted: Arc::default(), departed: Arc::default(), snapshot }
    }

    pub(super) fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Publishes the scheduler's current status.
    pub(crate) fn publish(&self, scheduler: &Scheduler) {
        let departed = scheduler.submitted() - scheduler.queued() as u64;
        self.departed.store(departed, Ordering::Release);
        *self.lock() = Snapshot::of(scheduler, self.block_bytes);
    }

    pub(super) fn waiting(&self) -> usize {
        let departed = self.departed.load(Ordering::Acquire);
        self.accepted.load(Ordering::Acquire).saturating_sub(departed) as usize
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Snapshot> {
        // A snapshot is plain data: a panic under the lock leaves it consistent.
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Snapshot {
    fn of(scheduler: &Scheduler, block_bytes: usize) -> Snapshot {
        let cache = scheduler.cache().stats();
        let stats = EngineStats {
            running: scheduler.running(),
            running_behind: scheduler.running_behind(),
            waiting: scheduler.queued(),
            kv_bytes: cache.blocks * block_bytes,
            kv_owned_bytes: cache.owned * block_bytes,
            kv_shared_bytes: cache.shared * block_bytes,
            kv_withheld_bytes: cache.withheld * block_bytes,
            kv_free_bytes: cache.free * block_bytes,
            counters: *scheduler.counters(),
            compute_rate: scheduler.prefixes.compute_rate(),
            disk: scheduler.prefixes.disk_stats(),
            remote: scheduler.prefixes.remote_stats(),
            cache,
        };
        Snapshot { stats, service: scheduler.mean_service() }
    }
}
