//! The last steps, numbered, for subscribers and for those who missed some.
//!
//! Bounded in number and in bytes: the oldest are dropped first, whoever has not had them yet. The numbers show it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use tokio::sync::Notify;

/// Steps of one engine.
#[derive(Debug)]
pub(super) struct Steps {
    kept: Mutex<Kept>,
    /// Wakes the one who publishes.
    news: Notify,
    steps_max: usize,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Kept {
    /// The number of the next step.
    next: u64,
    bytes: usize,
    /// Without gaps, up to the one before `next`.
    steps: VecDeque<Bytes>,
}

/// What happened in a step, encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) number: u64,
    pub(super) payload: Bytes,
}

impl Steps {
    /// None so far, of which the last `steps_max` are kept and at most `bytes_max` of bytes; one is kept however large.
    pub(super) fn new(steps_max: usize, bytes_max: usize) -> Steps {
        Steps { kept: Mutex::default(), news: Notify::new(), steps_max: steps_max.max(1), bytes_max }
    }

    /// Adds a step, and never waits.
    pub(super) fn push(&self, payload: Bytes) {
        let mut kept = self.lock();
        kept.next += 1;
        kept.bytes += payload.len();
        kept.steps.push_back(payload);
        while kept.steps.len() > self.steps_max || (kept.bytes > self.bytes_max && kept.steps.len() > 1) {
            kept.bytes -= kept.steps.pop_front().map_or(0, |dropped| dropped.len());
        }
        drop(kept);
        self.news.notify_one();
    }

    /// The kept steps from a number on, at most `most`, oldest first.
    pub(super) fn from(&self, number: u64, most: usize) -> Vec<Step> {
        let kept = self.lock();
        let first = kept.next - kept.steps.len() as u64;
        let skipped = usize::try_from(number.saturating_sub(first)).unwrap_or(usize::MAX);
        let steps = kept.steps.iter().zip(first..).skip(skipped).take(most);
        steps.map(|(payload, number)| Step { number, payload: payload.clone() }).collect()
    }

    /// Waits until something was added since the last call, by the one who publishes.
    pub(super) async fn news(&self) {
        self.news.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // No call in it panics.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(steps: &Steps, from: u64, most: usize) -> Vec<u64> {
        steps.from(from, most).iter().map(|step| step.number).collect()
    }

    #[test]
    fn the_last_steps_are_kept_in_number_and_in_bytes() {
        let steps = Steps::new(3, 100);
        assert_eq!(steps.from(0, 9), []);
        (0..5).for_each(|index| steps.push(vec![index; 10].into()));
        assert_eq!(numbers(&steps, 0, 9), [2, 3, 4]);
        assert_eq!(numbers(&steps, 3, 9), [3, 4]);
        assert_eq!(numbers(&steps, 0, 2), [2, 3]);
        assert!(numbers(&steps, 5, 9).is_empty() && numbers(&steps, u64::MAX, 9).is_empty());
        assert_eq!(steps.from(4, 1), [Step { number: 4, payload: vec![4; 10].into() }]);
        steps.push(vec![5; 85].into());
        assert_eq!(numbers(&steps, 0, 9), [4, 5], "of 115 bytes 100 are kept");
        steps.push(vec![6; 1000].into());
        assert_eq!(numbers(&steps, 0, 9), [6], "the last one is kept whatever its size");
    }
}
