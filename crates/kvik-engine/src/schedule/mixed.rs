//! How many rows of prompts stand beside those of streams.
//!
//! With more of them somebody's first token comes sooner, since what streams read of their keys and values is read less
//! often, and everybody's next one later. So there are more while such a step still is short. Where requests wait for a
//! place, streams go first: they free one when they have ended.

use std::time::Duration;

use super::plan::Plan;

/// A step that has more than the fewest rows of prompts takes about so long at most.
const STEP: Duration = Duration::from_millis(750);
/// A step with fewer rows of prompts does not say what others would take.
const ROWS_MIN: usize = 16;

/// What a row takes in steps that read prompts.
#[derive(Debug, Default)]
pub(super) struct MixedRows {
    /// Seconds in the last of them; none where there was none.
    row: f64,
}

impl MixedRows {
    /// Rows of prompts beside streams: `most`, or down to a third of them.
    pub(super) fn rows(&self, most: usize, somebody_waits: bool) -> usize {
        let least = most.div_ceil(3);
        match somebody_waits {
            true => least,
            false => ((STEP.as_secs_f64() / self.row) as usize).clamp(least, most),
        }
    }

    /// Notes how long a step took.
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
