//! The last steps, numbered, for subscribers and for peers that missed some.
//!
//! Bounded in number and in bytes: the oldest are dropped first, even if a peer has not received them. The numbers
//! reveal gaps.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::watch;

/// Steps of one engine.
#[derive(Debug)]
pub(super) struct Steps {
    kept: Mutex<Kept>,
    /// Wakes tasks that wait for another step.
    news: watch::Sender<()>,
    steps_max: usize,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Kept {
    /// The number of the next step.
    next: u64,
    bytes: usize,
    /// Consecutive steps, up to the one before `next`.
    steps: VecDeque<Bytes>,
}

/// The events of a step, encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) number: u64,
    pub(super) payload: Bytes,
}

impl Steps {
    /// An empty buffer of at most `steps_max` steps and `bytes_max` bytes; a single step may be of any size.
    pub(super) fn new(steps_max: usize, bytes_max: usize) -> Steps {
        Steps { kept: Mutex::default(), news: watch::Sender::new(()), steps_max: steps_max.max(1), bytes_max }
    }

    /// Adds a step. Never blocks.
    pub(super) fn push(&self, payload: Bytes) {
        let mut kept = self.lock();
        kept.next += 1;
        kept.bytes += payload.len();
        kept.steps.push_back(payload);
        while kept.steps.len() > self.steps_max || (kept.bytes > self.bytes_max && kept.steps.len() > 1) {
            kept.bytes -= kept.steps.pop_front().map_or(0, |dropped| dropped.len());
        }
        drop(kept);
        self.news.send_replace(());
    }

    /// The number of the next step.
    pub(super) fn end(&self) -> u64 {
        self.lock().next
    }

    /// The oldest buffered step with this number or a later one.
    pub(super) fn first_from(&self, number: u64) -> Option<Step> {
        let kept = self.lock();
        let first = kept.next - kept.steps.len() as u64;
        let index = usize::try_from(number.saturating_sub(first)).ok()?;
        kept.steps.get(index).map(|payload| Step { number: first + index as u64, payload: payload.clone() })
    }

    /// Waits for a step that has this number or a later one.
    pub(super) async fn wait_from(&self, number: u64) -> Step {
        let mut news = self.news.subscribe();
        loop {
            if let Some(step) = self.first_from(number) {
                return step;
            }
            // Its sender lives as long as these steps.
            let _ = news.changed().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // No call under the lock panics.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(steps: &Steps, from: u64) -> Vec<u64> {
        let first = steps.first_from(from);
        std::iter::successors(first, |step| steps.first_from(step.number + 1))
            .map(|step| step.number)
            .collect()
    }

    #[test]
    fn the_last_steps_are_kept_in_number_and_in_bytes() {
        let steps = Steps::new(3, 100);
        assert_eq!(steps.first_from(0), None);
        (0..5).for_each(|index| steps.push(vec![index; 10].into()));
        assert_eq!(numbers(&steps, 0), [2, 3, 4]);
        assert_eq!(numbers(&steps, 3), [3, 4]);
        assert_eq!(steps.end(), 5);
        assert!(numbers(&steps, 5).is_empty() && numbers(&steps, u64::MAX).is_empty());
        assert_eq!(steps.first_from(4), Some(Step { number: 4, payload: vec![4; 10].into() }));
        steps.push(vec![5; 85].into());
        assert_eq!(numbers(&steps, 0), [4, 5], "of 115 bytes 100 are kept");
        steps.push(vec![6; 1000].into());
        assert_eq!(numbers(&steps, 0), [6], "the last one is kept whatever its size");
    }

    #[tokio::test]
    async fn a_step_is_waited_for() {
        let steps = Steps::new(3, 100);
        let pushed = async { steps.push(Bytes::from_static(b"x")) };
        let (first, second, ()) = tokio::join!(steps.wait_from(0), steps.wait_from(0), pushed);
        assert_eq!((first.number, second.number), (0, 0));
    }
}
