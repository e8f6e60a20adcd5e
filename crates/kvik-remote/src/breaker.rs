//! A circuit breaker: after the first fault the store is not used until a probe has succeeded.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Number of corrupt values within [`CORRUPT_WITHIN`] that opens the breaker.
const CORRUPT_MAX: usize = 3;
const CORRUPT_WITHIN: Duration = Duration::from_secs(60);
/// Number of consecutive late requests that opens the breaker.
const LATE_MAX: u32 = 2;

/// The state of the circuit breaker. It starts open: an untested store is not used.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    is_up: bool,
    corrupt: VecDeque<Instant>,
    late: u32,
}

impl Breaker {
    /// Returns whether the store is in use.
    pub(crate) fn is_up(&self) -> bool {
        self.is_up
    }

    /// Notes a timeout, a refused connection or another fault. Returns whether the store was in use until now.
    pub(crate) fn fault(&mut self) -> bool {
        std::mem::take(&mut self.is_up)
    }

    /// Notes a corrupt value. Returns whether that opens the breaker.
    pub(crate) fn corrupt(&mut self, now: Instant) -> bool {
        self.corrupt.retain(|&at| now.duration_since(at) < CORRUPT_WITHIN);
        self.corrupt.push_back(now);
        self.corrupt.len() >= CORRUPT_MAX && self.fault()
    }

    /// Notes a request that was abandoned because it took too long. Returns whether that opens the breaker.
    pub(crate) fn late(&mut self) -> bool {
        self.late += 1;
        self.late >= LATE_MAX && self.fault()
    }

    /// Notes a request that was answered in time.
    pub(crate) fn answered(&mut self) {
        self.late = 0;
    }

    /// Notes a successful probe. Returns whether the store was not in use until now.
    pub(crate) fn probed(&mut self) -> bool {
        let was_up = self.is_up;
        *self = Breaker { is_up: true, ..Breaker::default() };
        !was_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up() -> Breaker {
        let mut breaker = Breaker::default();
        assert!(breaker.probed() && !breaker.probed() && breaker.is_up());
        breaker
    }

    #[test]
    fn it_starts_open_and_a_fault_opens_it_once() {
        assert!(!Breaker::default().is_up());
        let mut breaker = up();
        assert!(breaker.fault() && !breaker.fault() && !breaker.is_up());
    }

    #[tokio::test(start_paused = true)]
    async fn three_corrupt_values_within_a_minute_open_it() {
        let mut breaker = up();
        for second in [0, 25, 61, 90] {
            let now = Instant::now() + Duration::from_secs(second);
            assert!(!breaker.corrupt(now) && breaker.is_up(), "at {second} s");
        }
        assert!(breaker.corrupt(Instant::now() + Duration::from_secs(100)) && !breaker.is_up());
    }

    #[test]
    fn two_late_requests_in_a_row_open_it() {
        let mut breaker = up();
        assert!(!breaker.late());
        breaker.answered();
        assert!(!breaker.late() && breaker.late() && !breaker.is_up());
    }
}
