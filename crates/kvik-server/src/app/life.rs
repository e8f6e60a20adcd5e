//! Liveness of the engine, for `/health`, the metrics and the watchdog.

use std::time::Duration;

use kvik_model::pulse::{Life, Phase};

/// Time without a pulse after which an engine that has work is stuck. It sends two pulses a layer while a
/// model computes, and half a layer of the largest step takes less even for a model of 70 billion parameters
/// on a few cores. The margin lets a watcher that looks once a second report it within ten.
pub(crate) const STUCK_AFTER: Duration = Duration::from_secs(5);

/// Whether an engine in this state is stuck, or has ended without being stopped.
pub(crate) fn is_stuck(life: Life) -> bool {
    life.phase == Phase::Ended || life.age >= STUCK_AFTER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_silence_at_work_is_stuck_and_idleness_is_not() {
        let at = |phase, seconds| Life { phase, age: Duration::from_secs(seconds) };
        for (life, expect) in [
            (Life::default(), false),
            (at(Phase::Compute, 4), false),
            (at(Phase::Compute, 5), true),
            (at(Phase::Call, 60), true),
            (at(Phase::Ended, 0), true),
        ] {
            assert_eq!(is_stuck(life), expect, "{life:?}");
        }
    }
}
