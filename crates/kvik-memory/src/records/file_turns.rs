//! Admission to a file that may not answer.
//!
//! A file system that hangs blocks every thread that calls it. So only a few threads access a file at a time, a bounded
//! number of others wait for them for a bounded time, and all further ones are refused at once: threads remain for work
//! that needs no file.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Maximum number of threads that wait for a slot.
const WAITING_MAX: usize = 32;
/// Maximum time that a thread waits.
const PATIENCE: Duration = Duration::from_secs(5);

/// The access slots of one file.
pub struct FileTurns {
    /// Maximum number of threads that access the file at a time.
    places: usize,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Default)]
struct State {
    inside: usize,
    waiting: usize,
}

/// An access slot of the file; released when dropped.
pub struct FileTurn<'a>(&'a FileTurns);

/// The error that earlier threads still occupy the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the file that this is kept in does not answer, and others wait for it already")]
pub struct FileSilent;

impl FileTurns {
    /// Admits at most `places` threads at a time.
    pub fn new(places: usize) -> FileTurns {
        FileTurns { places, state: Mutex::default(), freed: Condvar::new() }
    }

    /// Acquires a slot. Blocks the calling thread, so the thread has to be one that may block.
    pub fn enter(&self) -> Result<FileTurn<'_>, FileSilent> {
        let mut state = self.lock();
        if state.inside >= self.places {
            if state.waiting >= WAITING_MAX {
                return Err(FileSilent);
            }
            state.waiting += 1;
            let waited = self.freed.wait_timeout_while(state, PATIENCE, |state| state.inside >= self.places);
            // A panic leaves the state consistent: each change is a single assignment.
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
            if state.inside >= self.places {
                return Err(FileSilent);
            }
        }
        state.inside += 1;
        Ok(FileTurn(self))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for FileTurn<'_> {
    fn drop(&mut self) {
        self.0.lock().inside -= 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_inside_few_wait_and_others_are_refused_at_once() {
        let turns = FileTurns::new(2);
        let inside = [turns.enter().unwrap(), turns.enter().unwrap()];
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..WAITING_MAX).map(|_| scope.spawn(|| turns.enter().map(drop))).collect();
            while turns.lock().waiting < WAITING_MAX {
                std::thread::yield_now();
            }
            assert_eq!(turns.enter().err(), Some(FileSilent), "there are enough who wait");
            drop(inside);
            for waiting in waiting {
                assert_eq!(waiting.join().unwrap(), Ok(()), "one after another");
            }
        });
        let _inside = [turns.enter().unwrap(), turns.enter().unwrap()];
    }

    #[test]
    fn who_waits_in_vain_is_refused() {
        let turns = FileTurns::new(1);
        let _inside = turns.enter().unwrap();
        assert_eq!(turns.enter().err(), Some(FileSilent));
        assert_eq!(turns.lock().waiting, 0);
    }
}
