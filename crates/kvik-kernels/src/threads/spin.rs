//! Waiting for a moment without giving up the processor.

#[cfg(not(loom))]
use std::{
    hint,
    time::{Duration, Instant},
};

/// How long a thread polls before it parks: longer than any gap between the jobs of a token.
///
/// Time and not a number of polls, because a `pause` takes 12 ns on one processor and 50 on another.
#[cfg(not(loom))]
pub(super) const SPIN: Duration = Duration::from_micros(50);

/// Polls between two looks at the clock. A look costs 25 ns, this many pauses 0.4 to 1.6 us.
#[cfg(not(loom))]
const POLLS_PER_LOOK: u32 = 32;

/// Polls until `poll` has something or the time is over. In a pool that is `crowded`, with more threads than cores, it
/// lets others go on between polls: what it waits for may be done by a thread that has no core.
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
    // Most waits are over before the clock is worth a look.
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

/// Under loom nothing is gained by polling, and every poll multiplies the interleavings.
#[cfg(loom)]
pub(super) fn spin<T>(_crowded: bool, _poll: impl FnMut() -> Option<T>) -> Option<T> {
    None
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// How long a wait for nothing takes when one poll takes `poll_ns` more, the shortest of several:
    /// other programs only ever make it longer.
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
            // A count of polls that gives 50 us at 12 ns each would give four milliseconds at the slowest.
            assert!(wait < 20 * SPIN, "{poll_ns} ns a poll: {wait:?}");
        }
    }

    /// Two rounds of polls go by before the clock can end a wait: so many polls are made however slow the
    /// processor is, or the program that plays one.
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
