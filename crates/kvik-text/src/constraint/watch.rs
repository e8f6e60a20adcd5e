//! A limit on the time of one mask, for grammars whose cost no count predicts.
//!
//! The parser of an ambiguous grammar can need minutes for one step. It polls its cancellation handle, which a
//! watchdog thread sets when the time is over. Time is counted in ticks of this thread, so that a process that
//! was suspended finds nothing overdue, and if the system reports the CPU time of a thread, a mask that waits for
//! a processor is not overdue either.

use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use llguidance::CancellationHandle;

/// Interval of the thread.
const TICK: Duration = Duration::from_millis(10);
/// A mask takes milliseconds; after this many ticks it is cancelled. The other requests of its step
/// wait as long.
const TICKS_MAX: u32 = 20;
/// After this many ticks it is cancelled even if it has used hardly any CPU time.
const TICKS_WORST: u32 = 50 * TICKS_MAX;
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
    thread: Option<Arc<File>>,
    /// The CPU time of its thread at the first tick.
    before: Option<Duration>,
}

thread_local! {
    /// The file in which the system reports the CPU time of this thread.
    static COMPUTED: Option<Arc<File>> = File::open("/proc/thread-self/schedstat").ok().map(Arc::new);
}

impl Running {
    fn tick(&mut self) {
        self.ticks += 1;
        if self.ticks == 1 {
            self.before = self.computed();
        }
        if self.ticks > TICKS_MAX && self.is_overdue() {
            self.handle.cancel();
        }
    }

    /// Whether the mask has used CPU time for nearly all of its time limit.
    fn is_overdue(&self) -> bool {
        let (Some(before), Some(now)) = (self.before, self.computed()) else { return true };
        now.saturating_sub(before) >= TICK * (TICKS_MAX - 4) || self.ticks > TICKS_WORST
    }

    /// The CPU time of its thread, if the system reports it.
    fn computed(&self) -> Option<Duration> {
        let mut text = [0; 64];
        let len = read_at_start(self.thread.as_deref()?, &mut text)?;
        let nanoseconds = std::str::from_utf8(&text[..len]).ok()?.split_whitespace().next()?.parse().ok()?;
        Some(Duration::from_nanos(nanoseconds))
    }
}

#[cfg(unix)]
fn read_at_start(file: &File, into: &mut [u8]) -> Option<usize> {
    std::os::unix::fs::FileExt::read_at(file, into, 0).ok()
}

#[cfg(not(unix))]
fn read_at_start(_: &File, _: &mut [u8]) -> Option<usize> {
    None
}

/// A guard of a watched mask; dropping it ends the watch.
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
        let thread = COMPUTED.with(Clone::clone);
        state.running.push(Running { id, handle, ticks: 0, thread, before: None });
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
            state.running.iter_mut().for_each(Running::tick);
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
            std::hint::spin_loop();
        }
        drop(watched);
        assert!(!quick.is_cancelled());
    }

    #[test]
    fn a_mask_that_gets_no_processor_is_not_overdue() {
        if COMPUTED.with(Option::is_none) {
            return kvik_testing::skip("this system does not say how long a thread has computed");
        }
        let (watch, starved) = (Watch::default(), CancellationHandle::default());
        let _watched = watch.over(starved.clone());
        std::thread::sleep(TICK * (3 * TICKS_MAX));
        assert!(!starved.is_cancelled());
    }
}
