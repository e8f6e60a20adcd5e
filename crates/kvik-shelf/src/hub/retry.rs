//! Retries of requests: after a pause that grows, or that the hub asks for.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{Progress, ShelfError};

/// Number of consecutive failures after which the request is abandoned.
const FAILURES_MAX: u32 = 7;
/// Maximum of the growing pause.
const PAUSE_MAX: Duration = Duration::from_secs(20);
/// Maximum pause that is granted to a hub.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);
/// Interval at which cancellation is checked.
const LOOK: Duration = Duration::from_millis(50);

/// A counter of consecutive failures.
#[derive(Debug)]
pub(crate) struct Retry {
    first_pause: Duration,
    failures: u32,
}

impl Retry {
    /// Creates a counter with this pause after the first failure, which doubles with each further one.
    pub(crate) fn new(first_pause: Duration) -> Retry {
        Retry { first_pause, failures: 0 }
    }

    /// Resets the count after a success.
    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Pauses before the next attempt after `error`, or returns that if there is none.
    pub(crate) fn pause(&mut self, error: ShelfError, progress: &dyn Progress) -> Result<(), ShelfError> {
        self.failures += 1;
        let asked = match &error {
            ShelfError::Status { retry_after, .. } => *retry_after,
            _ => None,
        };
        let may_pass = error.is_passing() || matches!(error, ShelfError::BrokeOff { .. });
        if !may_pass || self.failures >= FAILURES_MAX || asked.is_some_and(|asked| asked > RETRY_AFTER_MAX) {
            return Err(error);
        }
        let grown = self.first_pause.saturating_mul(1 << (self.failures - 1)).min(PAUSE_MAX);
        sleep(asked.unwrap_or(grown), progress)
    }
}

/// Sleeps, unless the caller cancels.
pub(crate) fn sleep(duration: Duration, progress: &dyn Progress) -> Result<(), ShelfError> {
    let end = Instant::now() + duration;
    loop {
        if progress.cancelled() {
            return Err(ShelfError::Cancelled);
        }
        match end.saturating_duration_since(Instant::now()) {
            Duration::ZERO => return Ok(()),
            left => thread::sleep(left.min(LOOK)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quiet;

    fn status(status: u16, retry_after: Option<u64>) -> ShelfError {
        let retry_after = retry_after.map(Duration::from_secs);
        ShelfError::Status { url: "u".into(), status, retry_after }
    }

    #[test]
    fn failures_that_pass_are_tried_again_so_many_times() {
        let mut retry = Retry::new(Duration::ZERO);
        let mut tries = 0;
        while retry.pause(status(503, None), &Quiet).is_ok() {
            tries += 1;
        }
        assert_eq!(tries, FAILURES_MAX - 1);
        retry.succeeded();
        assert!(retry.pause(status(429, Some(0)), &Quiet).is_ok());
        assert!(retry.pause(status(429, Some(301)), &Quiet).is_err(), "too long a pause");
        retry.succeeded();
        assert!(retry.pause(status(418, None), &Quiet).is_err(), "tea does not pass");
    }

    #[test]
    fn a_pause_ends_when_the_caller_cancels() {
        struct Impatient;
        impl Progress for Impatient {
            fn cancelled(&self) -> bool {
                true
            }
        }
        let mut retry = Retry::new(Duration::from_secs(3600));
        let error = retry.pause(status(503, None), &Impatient).expect_err("nobody waits an hour");
        assert!(matches!(error, ShelfError::Cancelled), "{error}");
    }
}
