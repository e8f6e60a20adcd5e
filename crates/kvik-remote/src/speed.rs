//! Read times, predicted from measurements.

use std::time::Duration;

use kvik_engine::store::remote::Expected;

/// Weight of a new measurement.
const WEIGHT: f64 = 0.25;
/// Multiple of the expected time after which a response is late.
const DEADLINE_TIMES: u32 = 4;

/// Measurement of a transfer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sample {
    /// Time until an empty response.
    pub(crate) latency: Duration,
    /// Additional seconds per byte.
    pub(crate) byte_s: f64,
}

/// Smoothed times.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Speed(Sample);

impl Speed {
    /// The measurement of a probe.
    pub(crate) fn new(sample: Sample) -> Speed {
        Speed(sample)
    }

    /// Notes the time of an empty response.
    pub(crate) fn answered(&mut self, time: Duration) {
        self.0.latency = self.0.latency.mul_f64(1.0 - WEIGHT) + time.mul_f64(WEIGHT);
    }

    /// Notes the time of reading a value of `bytes`, including latency.
    pub(crate) fn read(&mut self, bytes: u64, time: Duration) {
        self.0.byte_s += WEIGHT * (byte_s(bytes, time, self.0.latency) - self.0.byte_s);
    }

    /// Expected time of reading blocks.
    pub(crate) fn expected(&self, payload_bytes: usize) -> Expected {
        Expected { latency: self.0.latency, block: self.bytes(payload_bytes as u64) }
    }

    /// Time limit of a response with `bytes`, its own and those requested before.
    pub(crate) fn deadline(&self, bytes: u64) -> Duration {
        self.0.latency.saturating_add(self.bytes(bytes)).saturating_mul(DEADLINE_TIMES)
    }

    fn bytes(&self, bytes: u64) -> Duration {
        Duration::try_from_secs_f64(self.0.byte_s * bytes as f64).unwrap_or(Duration::MAX)
    }
}

/// Seconds per byte of a value. Latency varies: at most half of the time is attributed to it.
pub(crate) fn byte_s(bytes: u64, time: Duration, latency: Duration) -> f64 {
    time.saturating_sub(latency).max(time / 2).as_secs_f64() / bytes.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATENCY: Duration = Duration::from_millis(2);

    #[test]
    fn it_follows_what_it_measures_and_nothing_makes_it_nonsense() {
        let mut speed = Speed::new(Sample { latency: LATENCY, byte_s: 1e-8 });
        let expected = speed.expected(1_000_000);
        assert_eq!(expected, Expected { latency: LATENCY, block: Duration::from_millis(10) });
        for _ in 0..50 {
            speed.answered(LATENCY * 3);
            speed.read(1_000_000, LATENCY * 3 + Duration::from_millis(40));
        }
        let expected = speed.expected(1_000_000);
        assert!(expected.latency.abs_diff(LATENCY * 3) < LATENCY / 100, "{expected:?}");
        assert!(expected.block.abs_diff(Duration::from_millis(40)) < LATENCY / 100, "{expected:?}");
        speed.read(0, Duration::MAX);
        assert!(speed.deadline(u64::MAX) > Duration::ZERO);
        speed.read(1, Duration::ZERO);
        assert!(speed.expected(1).block <= Duration::MAX);
    }

    #[test]
    fn a_deadline_is_four_times_what_is_expected() {
        let speed = Speed::new(Sample { latency: LATENCY, byte_s: 1e-8 });
        assert_eq!(speed.deadline(0), LATENCY * 4);
        assert_eq!(speed.deadline(10_000_000), (LATENCY + Duration::from_millis(100)) * 4);
    }
}
