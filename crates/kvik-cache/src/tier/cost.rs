//! Decides whether loading a prefix is faster than recomputing it, from measurements of both.
//!
//! Smoothed measurements: seconds per block to load, from the first read issued to the last one finished, from disk
//! and, where a device computes with blocks of its own, from host memory; and seconds per token to compute. Nothing
//! is assumed: as long as one of them is unknown, loading is tried.

use std::time::Duration;

/// Weight of the newest sample.
const NEWEST: f64 = 0.25;
/// Factor on the load time after each decision against loading: so a disk that was slow for a while is tried again,
/// after a dozen decisions when it was ten times too slow.
const FORGIVENESS: f64 = 0.8;

/// Blocks to load, by their location.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reads {
    /// In host memory, where the blocks in use are in device memory.
    pub host: usize,
    /// On disk.
    pub disk: usize,
}

impl Reads {
    /// Blocks on disk.
    pub fn of_disk(disk: usize) -> Reads {
        Reads { host: 0, disk }
    }

    /// All blocks.
    pub fn blocks(&self) -> usize {
        self.host + self.disk
    }
}

/// Measured costs of loading and of computing.
#[derive(Debug, Clone, Copy, Default)]
pub struct CostModel {
    /// Seconds to load a block from the host's memory.
    host_s: Option<f64>,
    /// Seconds to load a block from disk.
    disk_s: Option<f64>,
    /// Seconds to compute a token.
    compute_s: Option<f64>,
}

impl CostModel {
    /// Notes that blocks were loaded in `elapsed`. Of a mixed load, the known time of the host part is subtracted.
    pub fn loaded(&mut self, reads: Reads, elapsed: Duration) {
        if reads.disk == 0 {
            return learn(&mut self.host_s, elapsed, reads.host);
        }
        let of_host = Duration::from_secs_f64(self.host_s.unwrap_or_default() * reads.host as f64);
        learn(&mut self.disk_s, elapsed.saturating_sub(of_host), reads.disk);
    }

    /// Notes that `tokens` of prompts were computed in `elapsed`.
    pub fn computed(&mut self, tokens: usize, elapsed: Duration) {
        learn(&mut self.compute_s, elapsed, tokens);
    }

    /// Decides whether to load blocks that hold `tokens` which would be recomputed otherwise. Not a pure query: a
    /// decision against loading makes the next one more lenient.
    pub fn decide(&mut self, reads: Reads, tokens: usize) -> bool {
        let load = self.load_time(reads).unwrap_or_default();
        let loads = self.compute_time(tokens).is_none_or(|compute| load < compute);
        if !loads {
            for (seconds, count) in [(&mut self.host_s, reads.host), (&mut self.disk_s, reads.disk)] {
                *seconds = seconds.map(|seconds| if count > 0 { seconds * FORGIVENESS } else { seconds });
            }
        }
        loads
    }

    /// Predicted load time, if known.
    pub fn load_time(&self, reads: Reads) -> Option<Duration> {
        let of = |seconds: Option<f64>, count: usize| match count {
            0 => Some(0.0),
            _ => seconds.map(|seconds| seconds * count as f64),
        };
        let (host, disk) = (of(self.host_s, reads.host)?, of(self.disk_s, reads.disk)?);
        Some(Duration::from_secs_f64(host + disk))
    }

    /// Predicted computation time, if known.
    pub fn compute_time(&self, tokens: usize) -> Option<Duration> {
        self.compute_s.map(|seconds| Duration::from_secs_f64(seconds * tokens as f64))
    }

    /// Measured bytes per second of loading from disk, for blocks of `block_bytes`.
    pub fn disk_rate(&self, block_bytes: usize) -> Option<f64> {
        self.disk_s.map(|seconds| block_bytes as f64 / seconds)
    }

    /// Measured bytes per second of loading from host memory, for blocks of `block_bytes`.
    pub fn host_rate(&self, block_bytes: usize) -> Option<f64> {
        self.host_s.map(|seconds| block_bytes as f64 / seconds)
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

    #[test]
    fn the_faster_way_is_taken() {
        let mut cost = CostModel::default();
        assert!(cost.decide(Reads::of_disk(100), 1600), "nothing is known: try");
        cost.computed(1000, Duration::from_secs(1));
        assert!(cost.decide(Reads::of_disk(100), 1600), "loading is not known: try");
        cost.loaded(Reads::of_disk(10), Duration::from_millis(10));
        assert!(cost.decide(Reads::of_disk(100), 1600), "0.1 s against 1.6 s");
        let mut slow = CostModel::default();
        slow.computed(1000, Duration::from_secs(1));
        slow.loaded(Reads::of_disk(10), Duration::from_secs(1));
        assert!(!slow.decide(Reads::of_disk(100), 1600), "10 s against 1.6 s");
    }

    #[test]
    fn a_slow_disk_is_tried_again() {
        let mut cost = CostModel::default();
        cost.computed(1000, Duration::from_secs(1));
        cost.loaded(Reads::of_disk(1), Duration::from_millis(160));
        let refusals = (0..100).take_while(|_| !cost.decide(Reads::of_disk(1), 16)).count();
        assert!((5..20).contains(&refusals), "{refusals} refusals of a disk ten times too slow");
    }

    #[test]
    fn each_place_has_its_speed() {
        let mut cost = CostModel::default();
        cost.computed(1000, Duration::from_secs(1));
        cost.loaded(Reads { host: 10, disk: 0 }, Duration::from_millis(10));
        cost.loaded(Reads { host: 10, disk: 10 }, Duration::from_millis(1010));
        let millis = |reads| cost.load_time(reads).map(|time| time.as_millis());
        assert_eq!(millis(Reads { host: 100, disk: 0 }), Some(100));
        assert_eq!(millis(Reads { host: 5, disk: 5 }), Some(505));
        assert!(cost.decide(Reads { host: 10, disk: 0 }, 160), "10 ms against 160");
        assert!(!cost.decide(Reads { host: 5, disk: 5 }, 160), "505 ms against 160");
    }

    #[test]
    fn a_clock_that_stands_still_divides_by_nothing() {
        let mut cost = CostModel::default();
        cost.loaded(Reads::of_disk(1), Duration::ZERO);
        cost.computed(1, Duration::ZERO);
        assert!(cost.disk_rate(1024).unwrap().is_finite() && cost.compute_rate().unwrap().is_finite());
        let _ = cost.decide(Reads::of_disk(usize::MAX >> 40), 5);
    }
}
