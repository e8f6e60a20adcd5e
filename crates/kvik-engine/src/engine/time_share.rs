//! A limit on the share of time in which an engine computes: its device stays cool, and answers take longer.
//!
//! Steps are not interrupted: after computing, the engine rests for as long as the share requires, and time without
//! work counts as rest. Rest is not accumulated: after a long pause the share applies as well, over a window of about a
//! second or one step, whichever is longer.

use std::time::Duration;

use super::StartError;

/// Shorter rests are accumulated: a core that sleeps for less saves nothing.
const REST_MIN: Duration = Duration::from_millis(20);
/// Maximum duration of a rest at a time, since there may be requests to end by then.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The share of time in which an engine computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimeShare(f64);

/// Accounting of computing and resting, by a clock that the caller reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rests {
    share: TimeShare,
    /// Rest still owed at the time of the last call.
    owed: Duration,
    looked: Duration,
    is_resting: bool,
}

impl TimeShare {
    /// All of the time.
    pub const WHOLE: TimeShare = TimeShare(1.0);

    /// A part of the time.
    ///
    /// # Errors
    /// If it is not above 0 and at most 1.
    pub fn new(share: f32) -> Result<TimeShare, StartError> {
        match share > 0.0 && share <= 1.0 {
            true => Ok(TimeShare(f64::from(share))),
            false => Err(StartError::TimeShare { share }),
        }
    }

    /// The rest due after computing for `busy`.
    fn rest_after(self, busy: Duration) -> Duration {
        // Below this share a rest would overflow the clock.
        busy.mul_f64((1.0 - self.0) / self.0.max(1e-6))
    }
}

impl Default for TimeShare {
    fn default() -> TimeShare {
        TimeShare::WHOLE
    }
}

impl Rests {
    pub(super) fn new(share: TimeShare) -> Rests {
        Rests { share, owed: Duration::ZERO, looked: Duration::ZERO, is_resting: false }
    }

    /// How long to wait before the next call, while a rest is due; `None` if the next step may begin.
    pub(super) fn rest(&mut self, now: Duration) -> Option<Duration> {
        self.owed = self.owed.saturating_sub(now.saturating_sub(self.looked));
        self.looked = now;
        self.is_resting = self.owed >= if self.is_resting { Duration::from_nanos(1) } else { REST_MIN };
        self.is_resting.then(|| self.owed.min(LOOK_EVERY))
    }

    /// Records that a step has computed for `busy`, up to `now`.
    pub(super) fn computed(&mut self, busy: Duration, now: Duration) {
        self.owed += self.share.rest_after(busy);
        self.looked = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates steps of these lengths, repeated for a minute, with a pause of `pause` after each round; returns when
    /// each began and ended.
    fn minute(share: f32, steps: &[Duration], pause: Duration) -> Vec<(Duration, Duration)> {
        let mut rests = Rests::new(TimeShare::new(share).unwrap());
        let (mut now, mut computed) = (Duration::from_secs(5), Vec::new());
        while now < Duration::from_secs(65) {
            for &step in steps {
                while let Some(wait) = rests.rest(now) {
                    assert!(wait > Duration::ZERO && wait <= LOOK_EVERY, "{wait:?}");
                    now += wait;
                }
                computed.push((now, now + step));
                now += step;
                rests.computed(step, now);
            }
            now += pause;
        }
        computed
    }

    /// The time computed in a window.
    fn busy(steps: &[(Duration, Duration)], from: Duration, to: Duration) -> Duration {
        steps.iter().map(|&(begin, end)| end.min(to).saturating_sub(begin.max(from))).sum()
    }

    #[test]
    fn every_second_is_held_to_the_share_and_all_of_it_is_used() {
        let ms = Duration::from_millis;
        let cases: [(f32, &[Duration]); 5] = [
            (0.5, &[ms(1)]),
            (0.25, &[ms(90), ms(3), ms(3), ms(3)]),
            (0.75, &[ms(7), ms(40)]),
            (0.1, &[ms(5)]),
            (1.0, &[ms(30)]),
        ];
        for (share, steps) in cases {
            let computed = minute(share, steps, Duration::ZERO);
            let longest = *steps.iter().max().unwrap();
            for second in 6..60 {
                let from = Duration::from_secs(second);
                let busy = busy(&computed, from, from + Duration::from_secs(1));
                // One step, and the computing time that accumulates before a rest is worth it.
                let above = longest + REST_MIN;
                let most = Duration::from_secs(1).mul_f64(f64::from(share)) + above;
                assert!(busy <= most, "{share} from {second}: {busy:?}");
            }
            let all = busy(&computed, Duration::from_secs(5), Duration::from_secs(65)).as_secs_f64() / 60.0;
            assert!((all / f64::from(share) - 1.0).abs() < 0.02, "{share}: {all}");
        }
    }

    #[test]
    fn a_pause_is_a_rest_and_is_not_saved_up() {
        let ms = Duration::from_millis;
        // 10 of 40 ms are computed anyway.
        let computed = minute(0.5, &[ms(10)], ms(30));
        assert!(computed.windows(2).all(|pair| pair[1].0 - pair[0].1 == ms(30)), "no rest comes on top");
        let mut rests = Rests::new(TimeShare::new(0.5).unwrap());
        assert_eq!(rests.rest(Duration::from_secs(3600)), None);
        rests.computed(ms(100), Duration::from_secs(3600) + ms(100));
        assert_eq!(rests.rest(Duration::from_secs(3600) + ms(100)), Some(LOOK_EVERY));
    }

    #[test]
    fn a_share_is_above_nothing_and_at_most_all() {
        for share in [0.0, -0.5, 1.01, f32::NAN, f32::INFINITY] {
            assert!(TimeShare::new(share).is_err(), "{share}");
        }
        assert_eq!(TimeShare::new(1.0).unwrap(), TimeShare::WHOLE);
        // The computation neither overflows nor panics.
        let mut rests = Rests::new(TimeShare::new(f32::MIN_POSITIVE).unwrap());
        rests.computed(Duration::from_secs(10), Duration::from_secs(10));
        assert_eq!(rests.rest(Duration::from_secs(10)), Some(LOOK_EVERY));
    }
}
