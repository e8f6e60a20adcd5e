//! A table that is written behind the state in memory, by a thread of its own, so that requests need not wait
//! for a disk.
//!
//! ```text
//! a change in memory -> its key, once -> the thread -> current values of all queued keys, in one transaction
//! ```
//!
//! Keys are queued, not values, so the queue is no longer than the number of records, and each transaction holds a
//! state that memory had at one moment. A crash loses the changes that were not written yet.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::records::RecordsError;

/// Maximum number of queued keys. If a disk hangs, further changes are not written.
const QUEUED_MAX: usize = 4096;
/// Time after which a failed write is retried, if nothing changes before.
const RETRY: Duration = Duration::from_secs(5);
/// Maximum time that the end of the process waits for the disk.
pub(super) const CLOSING_TIME: Duration = Duration::from_secs(5);

/// Writes the records of changed keys. Dropping it waits a bounded time for the last ones.
pub(super) struct WriteBehind<K: Ord> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    state: Mutex<State<K>>,
    changed: Condvar,
}

struct State<K> {
    queued: BTreeSet<K>,
    /// Keys that are being written.
    writing: BTreeSet<K>,
    /// Number of failed writes: their keys are queued again, and written with the next ones.
    failures: u64,
    /// True if a write is due; after a failure only once something changes, or after a pause.
    is_due: bool,
    is_closing: bool,
    has_ended: bool,
}

impl<K: Ord + Clone + Send + 'static> WriteBehind<K> {
    /// Starts a thread that calls `write` with changed keys; `None` if the thread cannot be started.
    pub(super) fn start(
        write: impl FnMut(&BTreeSet<K>) -> Result<(), RecordsError> + Send + 'static,
    ) -> Option<WriteBehind<K>> {
        let state = State {
            queued: BTreeSet::new(),
            writing: BTreeSet::new(),
            failures: 0,
            is_due: false,
            is_closing: false,
            has_ended: false,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let ended = Ended(shared.clone());
        let thread = std::thread::Builder::new().name("kvik-summaries".to_owned());
        let started = thread.spawn(move || {
            let ended = ended;
            ended.0.write_all(write);
        });
        started.inspect_err(|error| tracing::warn!("summaries are not written down: {error}")).ok()?;
        Some(WriteBehind { shared })
    }

    /// Queues keys whose records have changed.
    pub(super) fn queue(&self, keys: impl IntoIterator<Item = K>) {
        let mut state = self.shared.lock();
        for key in keys {
            if state.queued.len() < QUEUED_MAX {
                state.queued.insert(key);
            } else if !state.queued.contains(&key) {
                tracing::warn!(
                    "what is known of a summary lasts only as long as this process: the disk is slow"
                );
            }
        }
        self.shared.wake(state);
    }

    /// Queues keys whose records are deleted. A caller waits for the deletion, so none is left out.
    pub(super) fn queue_deleted(&self, keys: impl IntoIterator<Item = K>) {
        let mut state = self.shared.lock();
        state.queued.extend(keys);
        self.shared.wake(state);
    }

    /// Waits at most `patience` until none of the selected keys is unwritten; returns whether that is so.
    pub(super) fn is_written(&self, mut is_meant: impl FnMut(&K) -> bool, patience: Duration) -> bool {
        let due = Instant::now() + patience;
        let mut state = self.shared.lock();
        let failures = state.failures;
        // Retries failed writes.
        self.shared.wake(state);
        state = self.shared.lock();
        while state.queued.iter().chain(&state.writing).any(&mut is_meant) {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() || state.has_ended || state.failures > failures {
                return false;
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl<K: Ord + Clone> Shared<K> {
    fn write_all(&self, mut write: impl FnMut(&BTreeSet<K>) -> Result<(), RecordsError>) {
        while let Some(keys) = self.next() {
            let written = write(&keys);
            let mut state = self.lock();
            state.writing.clear();
            if let Err(error) = written {
                tracing::warn!("what is known of summaries lasts only as long as this process: {error}");
                state.failures += 1;
                state.queued.extend(keys);
            }
            self.changed.notify_all();
        }
    }

    /// Waits for keys; `None` once the queue is closed and written.
    fn next(&self) -> Option<BTreeSet<K>> {
        let mut state = self.lock();
        loop {
            if state.is_due && !state.queued.is_empty() {
                state.is_due = false;
                state.writing = std::mem::take(&mut state.queued);
                return Some(state.writing.clone());
            }
            if state.is_closing {
                return None;
            }
            if state.queued.is_empty() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            } else {
                let waited = self.changed.wait_timeout(state, RETRY);
                let (waited, ended) = waited.unwrap_or_else(PoisonError::into_inner);
                state = waited;
                state.is_due |= ended.timed_out();
            }
        }
    }

    /// Marks a write as due.
    fn wake(&self, mut state: MutexGuard<'_, State<K>>) {
        state.is_due = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        // Every change leaves the queue consistent, even if a panic follows.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Ord> Drop for WriteBehind<K> {
    fn drop(&mut self) {
        let due = Instant::now() + CLOSING_TIME;
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.is_closing, state.is_due) = (true, true);
        self.shared.changed.notify_all();
        while !state.has_ended {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::warn!("the disk stands still: the last summaries are not written");
                return;
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Notes the end of the thread, even if it panics.
struct Ended<K>(Arc<Shared<K>>);

impl<K> Drop for Ended<K> {
    fn drop(&mut self) {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).has_ended = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{channel, sync_channel};

    use super::*;

    #[test]
    fn a_disk_that_stands_still_stops_nobody_and_what_waits_is_bounded() {
        let (begun, has_begun) = sync_channel(1);
        let (release, held) = channel::<()>();
        let (written, all) = channel();
        let behind = WriteBehind::start(move |keys: &BTreeSet<usize>| {
            let _ = begun.try_send(());
            let _ = held.recv();
            keys.iter().for_each(|key| written.send(*key).unwrap());
            Ok(())
        })
        .unwrap();
        behind.queue([0]);
        has_begun.recv().unwrap();
        behind.queue(1..=10 * QUEUED_MAX);
        assert_eq!(behind.shared.lock().queued.len(), QUEUED_MAX);
        assert!(!behind.is_written(|_| true, Duration::from_millis(1)), "the disk stands still");
        assert!(behind.is_written(|key| *key == usize::MAX, Duration::ZERO), "nothing waits of others");
        drop(release);
        assert!(behind.is_written(|_| true, CLOSING_TIME));
        drop(behind);
        assert_eq!(all.iter().count(), 1 + QUEUED_MAX);
    }

    #[test]
    fn what_could_not_be_written_is_written_with_the_next() {
        let (written, all) = channel();
        let mut attempt = 0;
        let behind = WriteBehind::start(move |keys: &BTreeSet<u8>| {
            attempt += 1;
            if attempt == 1 {
                let full = std::io::Error::other("the disk is full");
                return Err(RecordsError::Open { path: "records".into(), error: full.into() });
            }
            keys.iter().for_each(|key| written.send(*key).unwrap());
            Ok(())
        })
        .unwrap();
        behind.queue([1]);
        let failed = Instant::now();
        while behind.shared.lock().failures == 0 {
            assert!(failed.elapsed() < CLOSING_TIME);
            std::thread::yield_now();
        }
        behind.queue([2]);
        drop(behind);
        assert_eq!(all.iter().collect::<Vec<_>>(), [1, 2]);
    }
}
