//! A limit on the time of one mask, for grammars whose cost no count predicts.
//!
//! The parser of an ambiguous grammar can need minutes for one step. It polls its cancellation handle,
//! which a watchdog thread sets when the time is over. Time is counted in ticks of this thread, so that
//! a process that was suspended finds nothing overdue.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use llguidance::CancellationHandle;

/// Interval of the thread.
const TICK: Duration = Duration::from_millis(10);
/// A mask takes milliseconds; after this many ticks it is cancelled. The other requests of its step
/// wait as long.
const TICKS_MAX: u32 = 20;
/// Idle ticks after which the thread ends.
const TICKS_IDLE: u32 = 100;

/// Watches masks; clones share the state.
#[derive(Clone, Default)]
pub(super) struct Watch(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    running: Vec<Running>,
    next: u64,
    /// Whether the thread runs.
    ticking: bool,
}

struct Running {
    id: u64,
    handle: CancellationHandle,
    ticks: u32,
}

/// Keeps a mask watched; dropping it ends the watch.
pub(super) struct Watched {
    watch: Watch,
    id: u64,
}

impl Watch {
    /// Cancels `handle` unless the returned guard is dropped in time.
    pub(super) fn over(&self, handle: CancellationHandle) -> Watched {
        let mut state = self.lock();
        let id = state.next;
        state.next += 1;
        state.running.push(Running { id, handle, ticks: 0 });
        if !state.ticking {
            let watch = self.clone();
            let thread = std::thread::Builder::new().name("kvik-masks".to_owned());
            // Without the thread, only the limits on counts bound masks.
            state.ticking = thread.spawn(move || watch.tick()).is_ok();
        }
        Watched { watch: self.clone(), id }
    }

    /// Ticks until nothing has been watched for [`TICKS_IDLE`].
    fn tick(&self) {
        let mut idle = 0;
        loop {
            std::thread::sleep(TICK);
            let mut state = self.lock();
            for running in &mut state.running {
                running.ticks += 1;
                if running.ticks > TICKS_MAX {
                    running.handle.cancel();
                }
            }
            idle = if state.running.is_empty() { idle + 1 } else { 0 };
            if idle > TICKS_IDLE {
                state.ticking = false;
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock leaves the list of handles consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.watch.lock().running.retain(|running| running.id != self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_overdue_masks_are_cancelled() {
        let watch = Watch::default();
        let (quick, slow) = (CancellationHandle::default(), CancellationHandle::default());
        drop(watch.over(quick.clone()));
        let watched = watch.over(slow.clone());
        while !slow.is_cancelled() {
            std::thread::sleep(TICK);
        }
        drop(watched);
        assert!(!quick.is_cancelled());
    }
}
