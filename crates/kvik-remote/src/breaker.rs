//! Whether the store is asked: not from the first fault on, until a probe has succeeded.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// So many corrupt values within [`CORRUPT_WITHIN`] are no accident.
const CORRUPT_MAX: usize = 3;
const CORRUPT_WITHIN: Duration = Duration::from_secs(60);
/// So many requests one after the other that were given up because they took too long.
const LATE_MAX: u32 = 2;

/// Counts what goes wrong. It starts open: what was never tried is not asked.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    is_up: bool,
    corrupt: VecDeque<Instant>,
    late: u32,
}

impl Breaker {
    /// Whether the store is asked.
    pub(crate) fn is_up(&self) -> bool {
        self.is_up
    }

    /// A timeout, a refused connection or another fault. Whether the store was asked until now.
    pub(crate) fn fault(&mut self) -> bool {
        std::mem::take(&mut self.is_up)
    }

    /// A value was corrupt. Whether that ends asking.
    pub(crate) fn corrupt(&mut self, now: Instant) -> bool {
        self.corrupt.retain(|&at| now.duration_since(at) < CORRUPT_WITHIN);
        self.corrupt.push_back(now);
        self.corrupt.len() >= CORRUPT_MAX && self.fault()
    }

    /// A request was given up because it took too long. Whether that ends asking.
    pub(crate) fn late(&mut self) -> bool {
        self.late += 1;
        self.late >= LATE_MAX && self.fault()
    }

    /// A request was answered in time.
    pub(crate) fn answered(&mut self) {
        self.late = 0;
    }

    /// A probe has succeeded. Whether the store was not asked until now.
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
