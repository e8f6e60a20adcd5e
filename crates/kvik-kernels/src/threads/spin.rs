//! Short waits by polling, without yielding the processor.

#[cfg(not(loom))]
use std::{
    hint,
    time::{Duration, Instant},
};

/// Time that a thread polls before it parks: longer than any gap between the jobs of a token.
///
/// A time and not a number of polls, because a `pause` takes 12 ns on one processor and 50 on another.
#[cfg(not(loom))]
pub(super) const SPIN: Duration = Duration::from_micros(50);

/// Polls between two readings of the clock. A reading costs 25 ns, this many pauses 0.4 to 1.6 us.
#[cfg(not(loom))]
const POLLS_PER_LOOK: u32 = 32;

/// Polls until `poll` returns a value or the time is over. In a `crowded` pool, with more threads than cores, it
/// yields between polls: the thread that it waits for may have no core.
#[cfg(not(loom))]
#[inline]
pub(super) fn spin<T>(crowded: bool, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
    let mut round = || {
        for _ in 0..POLLS_PER_LOOK {
            if let Some(found) = poll() {
                return Some(found);
            }
            hint::spin_loop();
        }
        None
    };
    // Most waits end before the clock is worth reading.
    if let Some(found) = round() {
        return Some(found);
    }
    let start = Instant::now();
    loop {
        if let Some(found) = round() {
            return Some(found);
        }
        if start.elapsed() >= SPIN {
            return None;
        }
        if crowded {
            std::thread::yield_now();
        }
    }
}

/// Does not poll under loom: every poll multiplies the interleavings.
#[cfg(loom)]
pub(super) fn spin<T>(_crowded: bool, _poll: impl FnMut() -> Option<T>) -> Option<T> {
    None
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Duration of a wait that finds nothing when each poll takes `poll_ns` more; the minimum of several, since
    /// other programs can only lengthen it.
    fn wait_of(poll_ns: u64) -> Duration {
        let busy = Duration::from_nanos(poll_ns);
        let wait = || {
            let start = Instant::now();
            let nothing: Option<()> = spin(false, || {
                let poll = Instant::now();
                while poll.elapsed() < busy {}
                None
            });
            assert_eq!(nothing, None);
            start.elapsed()
        };
        (0..50).map(|_| wait()).min().unwrap_or_default()
    }

    #[test]
    fn a_wait_takes_its_time_whatever_a_poll_costs() {
        for poll_ns in [0, 100, 1000] {
            let wait = wait_of(poll_ns);
            assert!(wait >= SPIN, "{poll_ns} ns a poll: {wait:?}");
            // A count of polls that takes 50 us at 12 ns each would take four milliseconds with the slowest poll.
            assert!(wait < 20 * SPIN, "{poll_ns} ns a poll: {wait:?}");
        }
    }

    /// At least two rounds of polls precede the end of a wait, so this many polls are made however slow the
    /// processor or the emulator is.
    #[test]
    fn what_is_there_is_found_at_once_and_what_comes_is_found_later() {
        assert_eq!(spin(false, || Some(7)), Some(7));
        let last = 2 * POLLS_PER_LOOK;
        let mut polls = 0;
        let found = spin(false, || {
            polls += 1;
            (polls == last).then_some(polls)
        });
        assert_eq!(found, Some(last));
    }
}
