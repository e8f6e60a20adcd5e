//! Whether the engine lives: what `/health` says, what the metrics say, and who is told when it stands still.

use std::time::Duration;

use kvik_engine::pulse::{Life, Phase};

/// An engine that has work and has said nothing for so long is stuck. It speaks twice a layer while a model computes:
/// half a layer of the largest step takes less even for a model of 70 billion parameters on a few cores. Beyond it
/// there is room for a watcher that looks once a second and still says so within ten.
pub(crate) const STUCK_AFTER: Duration = Duration::from_secs(5);

/// Whether an engine that stands so is stuck, or has ended where nobody stopped it.
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
