//! Writes records behind those who change them: a commit waits for the disk, and a turn of a conversation must not.
//!
//! What is in memory is the truth and the file follows it. A crash loses what was changed in the last moments, and a
//! file system that hangs holds up the thread of this module alone.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Records that wait to be written at most. Beyond that new ones last as long as the process; removals always wait,
/// since what was deleted must not come back.
const WAITING_MAX: usize = 1 << 14;
/// How long the end of the process waits for the last write.
const LAST_WRITE_TIME: Duration = Duration::from_secs(5);

/// Changes of records by their keys; `None` removes one.
pub(super) type Changes<T> = BTreeMap<String, Option<T>>;

/// A thread that writes, and what it has not written yet. Dropping it writes the rest, if that takes no longer than
/// [`LAST_WRITE_TIME`].
pub(super) struct WriteBehind<T> {
    shared: Arc<Shared<T>>,
    /// Disconnected when the thread has ended and has closed what it writes to.
    ended: Mutex<Receiver<()>>,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    waiting: Changes<T>,
    closed: bool,
}

impl<T: Send + 'static> WriteBehind<T> {
    /// Starts the thread, which calls `write` with all that has changed since it last did.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub(super) fn start(write: impl FnMut(Changes<T>) + Send + 'static) -> std::io::Result<WriteBehind<T>> {
        let state = Mutex::new(State { waiting: Changes::new(), closed: false });
        let shared = Arc::new(Shared { state, changed: Condvar::new() });
        let (ends, ended) = channel();
        let of_thread = shared.clone();
        std::thread::Builder::new()
            .name("kvik-records".to_owned())
            .spawn(move || of_thread.run(write, ends))?;
        Ok(WriteBehind { shared, ended: Mutex::new(ended) })
    }

    /// Has these changes written, later ones of a key instead of earlier ones.
    pub(super) fn put(&self, changes: impl IntoIterator<Item = (String, Option<T>)>) {
        let mut state = self.shared.lock();
        for (key, change) in changes {
            let has_room = state.waiting.len() < WAITING_MAX || state.waiting.contains_key(&key);
            if has_room || change.is_none() {
                state.waiting.insert(key, change);
            }
        }
        self.shared.changed.notify_one();
    }
}

impl<T> Shared<T> {
    /// `ends` is dropped last: whoever waits for it finds the file closed.
    fn run(&self, mut write: impl FnMut(Changes<T>), ends: Sender<()>) {
        while let Some(changes) = self.next() {
            write(changes);
        }
        drop(write);
        drop(ends);
    }

    /// Waits for changes; `None` when all are written and no more will come.
    fn next(&self) -> Option<Changes<T>> {
        let idle = |state: &mut State<T>| state.waiting.is_empty() && !state.closed;
        let waited = self.changed.wait_while(self.lock(), idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        let changes = std::mem::take(&mut state.waiting);
        (!changes.is_empty()).then_some(changes)
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Every change of the map is one call, so it is whole whatever panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Drop for WriteBehind<T> {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_one();
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Nothing is ever sent: this returns when the thread has ended, or when it has taken too long.
        let _ = ended.recv_timeout(LAST_WRITE_TIME);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn changes_are_written_together_and_the_last_of_a_key_counts() {
        let (written, batches) = channel();
        let (go, gate) = channel::<()>();
        let behind = WriteBehind::start(move |changes: Changes<u32>| {
            written.send(changes).unwrap();
            gate.recv().unwrap();
        })
        .unwrap();
        behind.put([("a".to_owned(), Some(1))]);
        assert_eq!(batches.recv().unwrap(), Changes::from([("a".to_owned(), Some(1))]));
        // The file hangs; nobody who changes something waits for it.
        let started = Instant::now();
        for round in 0..1000 {
            behind.put([("a".to_owned(), None), ("b".to_owned(), Some(round))]);
        }
        assert!(started.elapsed() < Duration::from_secs(1));
        (0..2).for_each(|_| go.send(()).unwrap());
        drop(behind);
        let rest = Changes::from([("a".to_owned(), None), ("b".to_owned(), Some(999))]);
        assert_eq!(batches.recv().unwrap(), rest, "also what was not written when it ended");
        assert!(batches.recv().is_err());
    }

    #[test]
    fn what_waits_is_bounded_and_removals_are_never_left_out() {
        let (go, gate) = channel::<()>();
        let behind = WriteBehind::start(move |_: Changes<u32>| assert!(gate.recv().is_err())).unwrap();
        let key = |number: usize| number.to_string();
        behind.put((0..2 * WAITING_MAX).map(|number| (key(number), Some(1))));
        assert!(behind.shared.lock().waiting.len() <= WAITING_MAX);
        behind.put([(key(2 * WAITING_MAX), None)]);
        assert_eq!(behind.shared.lock().waiting.get(&key(2 * WAITING_MAX)), Some(&None));
        drop(go);
    }
}
