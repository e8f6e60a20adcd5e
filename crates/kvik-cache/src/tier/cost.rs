//! Decides whether loading a prefix is faster than recomputing it, from measurements of both.
//!
//! Smoothed measurements: seconds per block to load from each tier, from the first read issued to the last one finished,
//! and seconds per token to compute. Nothing is assumed: as long as one of them is unknown, loading is tried.

use std::time::Duration;

use super::levels::{ByLevel, Level};

/// Weight of the newest sample.
const NEWEST: f64 = 0.25;
/// Factor on the load time after each decision against loading: so a disk that was slow for a while is tried again,
/// after a dozen decisions when it was ten times too slow.
const FORGIVENESS: f64 = 0.8;

/// Measured costs of loading and of computing.
#[derive(Debug, Clone, Copy, Default)]
pub struct CostModel {
    /// Seconds to load a block from each tier, where that is measured.
    block_s: [Option<f64>; Level::ALL.len()],
    /// Seconds to compute a token.
    compute_s: Option<f64>,
}

impl CostModel {
    /// Notes that blocks were loaded in `elapsed`. Of a mixed load, the known time of the faster tiers is subtracted: the
    /// rest is what the slowest one took.
    pub fn loaded(&mut self, reads: ByLevel, elapsed: Duration) {
        let Some(slowest) = reads.slowest() else { return };
        let faster = reads.iter().filter(|&(level, _)| level < slowest);
        let known =
            faster.map(|(level, count)| self.block_s[level as usize].unwrap_or_default() * count as f64);
        let rest = elapsed.saturating_sub(Duration::from_secs_f64(known.sum()));
        learn(&mut self.block_s[slowest as usize], rest, reads[slowest]);
    }

    /// Notes that `tokens` of prompts were computed in `elapsed`.
    pub fn computed(&mut self, tokens: usize, elapsed: Duration) {
        learn(&mut self.compute_s, elapsed, tokens);
    }

    /// Decides whether to load blocks that hold `tokens` which would be recomputed otherwise. Not a pure query: a
    /// decision against loading makes the next one more lenient.
    pub fn decide(&mut self, reads: ByLevel, tokens: usize) -> bool {
        let pays = self.pays(self.load_time(reads), tokens);
        if !pays {
            for (level, _) in reads.iter() {
                self.block_s[level as usize] = self.block_s[level as usize].map(|block| block * FORGIVENESS);
            }
        }
        pays
    }

    /// Whether a load that takes this long, if that is known, is faster than computing `tokens`. The one comparison of
    /// all tiers, whether their time is measured here or told by their store.
    pub fn pays(&self, load: Option<Duration>, tokens: usize) -> bool {
        let load = load.unwrap_or_default();
        self.compute_time(tokens).is_none_or(|compute| load < compute)
    }

    /// Predicted load time, if known for each of the tiers.
    pub fn load_time(&self, reads: ByLevel) -> Option<Duration> {
        let times = reads.iter().map(|(level, count)| Some(self.block_s[level as usize]? * count as f64));
        times.sum::<Option<f64>>().map(Duration::from_secs_f64)
    }

    /// Predicted computation time, if known.
    pub fn compute_time(&self, tokens: usize) -> Option<Duration> {
        self.compute_s.map(|seconds| Duration::from_secs_f64(seconds * tokens as f64))
    }

    /// Measured bytes per second of loading from a tier, for blocks of `block_bytes`.
    pub fn load_rate(&self, level: Level, block_bytes: usize) -> Option<f64> {
        self.block_s[level as usize].map(|seconds| block_bytes as f64 / seconds)
    }

    /// Measured tokens per second of computation.
    pub fn compute_rate(&self) -> Option<f64> {
        self.compute_s.map(f64::recip)
    }
}

fn learn(known: &mut Option<f64>, elapsed: Duration, count: usize) {
    if count == 0 {
        return;
    }
    // A clock that did not advance must not make anything free.
    let sample = (elapsed.as_secs_f64() / count as f64).max(1e-9);
    *known = Some(known.map_or(sample, |mean| mean + NEWEST * (sample - mean)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_disk(blocks: usize) -> ByLevel {
        ByLevel::of(Level::Disk, blocks)
    }

    fn reads(host: usize, disk: usize) -> ByLevel {
        let mut reads = of_disk(disk);
        reads[Level::Host] = host;
        reads
    }

    #[test]
    fn the_faster_way_is_taken() {
        let mut cost = CostModel::default();
        assert!(cost.decide(of_disk(100), 1600), "nothing is known: try");
        cost.computed(1000, Duration::from_secs(1));
        assert!(cost.decide(of_disk(100), 1600), "loading is not known: try");
        cost.loaded(of_disk(10), Duration::from_millis(10));
        assert!(cost.decide(of_disk(100), 1600), "0.1 s against 1.6 s");
        let mut slow = CostModel::default();
        slow.computed(1000, Duration::from_secs(1));
        slow.loaded(of_disk(10), Duration::from_secs(1));
        assert!(!slow.decide(of_disk(100), 1600), "10 s against 1.6 s");
    }

    #[test]
    fn a_slow_disk_is_tried_again() {
        let mut cost = CostModel::default();
        cost.computed(1000, Duration::from_secs(1));
        cost.loaded(of_disk(1), Duration::from_millis(160));
        let refusals = (0..100).take_while(|_| !cost.decide(of_disk(1), 16)).count();
        assert!((5..20).contains(&refusals), "{refusals} refusals of a disk ten times too slow");
    }

    #[test]
    fn each_tier_has_its_speed() {
        let mut cost = CostModel::default();
        cost.computed(1000, Duration::from_secs(1));
        cost.loaded(reads(10, 0), Duration::from_millis(10));
        cost.loaded(reads(10, 10), Duration::from_millis(1010));
        let millis = |reads| cost.load_time(reads).map(|time| time.as_millis());
        assert_eq!(millis(reads(100, 0)), Some(100));
        assert_eq!(millis(reads(5, 5)), Some(505));
        assert!(cost.decide(reads(10, 0), 160), "10 ms against 160");
        assert!(!cost.decide(reads(5, 5), 160), "505 ms against 160");
    }

    #[test]
    fn a_clock_that_stands_still_divides_by_nothing() {
        let mut cost = CostModel::default();
        cost.loaded(of_disk(1), Duration::ZERO);
        cost.computed(1, Duration::ZERO);
        assert!(
            cost.load_rate(Level::Disk, 1024).unwrap().is_finite()
                && cost.compute_rate().unwrap().is_finite()
        );
        let _ = cost.decide(of_disk(usize::MAX >> 40), 5);
    }
}
