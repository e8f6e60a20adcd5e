//! The number of prompt rows in steps in which streams decode.
//!
//! More prompt rows shorten the time to first token, since the keys and values of the streams are read less often per
//! prompt row, and lengthen the time between tokens. So there are more of them as long as the step stays short. While
//! requests wait for an admission slot, streams take precedence: they free one when they end.

use std::time::Duration;

use super::plan::Plan;

/// Maximum duration of a step with more than the minimum number of prompt rows, approximately.
const STEP: Duration = Duration::from_millis(750);
/// A step with fewer prompt rows gives no measurement.
const ROWS_MIN: usize = 16;

/// Time per row in steps with prompt rows.
#[derive(Debug, Default)]
pub(super) struct MixedRows {
    /// Seconds in the last such step; 0 if there was none.
    row: f64,
}

impl MixedRows {
    /// Number of prompt rows in a step with streams: `most`, or down to a third of it.
    pub(super) fn rows(&self, most: usize, somebody_waits: bool) -> usize {
        let least = most.div_ceil(3);
        match somebody_waits {
            true => least,
            false => ((STEP.as_secs_f64() / self.row) as usize).clamp(least, most),
        }
    }

    /// Records how long a step took.
    pub(super) fn note(&mut self, plan: &Plan, elapsed: Duration) {
        if plan.prefill_rows() >= ROWS_MIN {
            self.row = elapsed.as_secs_f64() / plan.rows.len() as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_as_long_as_streams_can_bear() {
        let rows = |row, somebody_waits| MixedRows { row }.rows(192, somebody_waits);
        let measured = [0.0, 1e-6, 0.003, 0.004, 0.008, 1.0];
        assert_eq!(measured.map(|row| rows(row, false)), [192, 192, 192, 187, 93, 64]);
        assert_eq!(measured.map(|row| rows(row, true)), [64; 6], "who waits for a place waits for streams");
        assert_eq!(MixedRows { row: 1.0 }.rows(1, false), 1);
    }
}
