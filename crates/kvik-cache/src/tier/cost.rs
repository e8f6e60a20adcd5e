//! Whether reading a prefix back is faster than computing it again, learned from both.
//!
//! Two smoothed figures: seconds a block took to load, from the first read issued to the last one
//! finished, and seconds a token took to compute. Nothing is assumed: while one of them is not known,
//! loading is tried.

use std::time::Duration;

/// Weight of the newest sample.
const NEWEST: f64 = 0.25;
/// What is believed of loading after each decision against it: so a disk that was slow for a while is
/// tried again, after a dozen decisions when it was ten times too slow.
const FORGIVENESS: f64 = 0.8;

/// Measured costs of loading and of computing.
#[derive(Debug, Clone, Copy, Default)]
pub struct CostModel {
    /// Seconds to load a block.
    load_s: Option<f64>,
    /// Seconds to compute a token.
    compute_s: Option<f64>,
}

impl CostModel {
    /// `blocks` were loaded in `elapsed`.
    pub fn loaded(&mut self, blocks: usize, elapsed: Duration) {
        learn(&mut self.load_s, elapsed, blocks);
    }

    /// `tokens` of prompts were computed in `elapsed`.
    pub fn computed(&mut self, tokens: usize, elapsed: Duration) {
        learn(&mut self.compute_s, elapsed, tokens);
    }

    /// Whether to load `blocks` that hold `tokens` which would be computed otherwise. A decision, not a
    /// question: one against loading makes the next one more lenient.
    pub fn decide(&mut self, blocks: usize, tokens: usize) -> bool {
        let load = self.load_time(blocks).unwrap_or_default();
        let loads = self.compute_time(tokens).is_none_or(|compute| load < compute);
        if !loads {
            self.load_s = self.load_s.map(|seconds| seconds * FORGIVENESS);
        }
        loads
    }

    /// Time that loading will take, once it is known.
    pub fn load_time(&self, blocks: usize) -> Option<Duration> {
        self.load_s.map(|seconds| Duration::from_secs_f64(seconds * blocks as f64))
    }

    /// Time that computing will take, once it is known.
    pub fn compute_time(&self, tokens: usize) -> Option<Duration> {
        self.compute_s.map(|seconds| Duration::from_secs_f64(seconds * tokens as f64))
    }

    /// Measured bytes a second of loading, for blocks of `block_bytes`.
    pub fn load_rate(&self, block_bytes: usize) -> Option<f64> {
        self.load_s.map(|seconds| block_bytes as f64 / seconds)
    }

    /// Measured tokens a second of computing.
    pub fn compute_rate(&self) -> Option<f64> {
        self.compute_s.map(f64::recip)
    }
}

fn learn(known: &mut Option<f64>, elapsed: Duration, count: usize) {
    if count == 0 {
        return;
    }
    // A clock that did not move must not make anything free.
    let sample = (elapsed.as_secs_f64() / count as f64).max(1e-9);
    *known = Some(known.map_or(sample, |mean| mean + NEWEST * (sample - mean)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_faster_way_is_taken() {
        let mut cost = CostModel::default();
        assert!(cost.decide(100, 1600), "nothing is known: try");
        cost.computed(1000, Duration::from_secs(1));
        assert!(cost.decide(100, 1600), "loading is not known: try");
        cost.loaded(10, Duration::from_millis(10));
        assert!(cost.decide(100, 1600), "0.1 s against 1.6 s");
        let mut slow = CostModel::default();
        slow.computed(1000, Duration::from_secs(1));
        slow.loaded(10, Duration::from_secs(1));
        assert!(!slow.decide(100, 1600), "10 s against 1.6 s");
    }

    #[test]
    fn a_slow_disk_is_tried_again() {
        let mut cost = CostModel::default();
        cost.computed(1000, Duration::from_secs(1));
        cost.loaded(1, Duration::from_millis(160));
        let refusals = (0..100).take_while(|_| !cost.decide(1, 16)).count();
        assert!((5..20).contains(&refusals), "{refusals} refusals of a disk ten times too slow");
    }

    #[test]
    fn a_clock_that_stands_still_divides_by_nothing() {
        let mut cost = CostModel::default();
        cost.loaded(1, Duration::ZERO);
        cost.computed(1, Duration::ZERO);
        assert!(cost.load_rate(1024).unwrap().is_finite() && cost.compute_rate().unwrap().is_finite());
        let _ = cost.decide(usize::MAX >> 40, 5);
    }
}
