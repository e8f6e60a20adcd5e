//! Measured time of a step as a function of its number of rows.

use std::time::Duration;

use crate::config::ROWS_AT_A_TIME;

/// Number of row groups that are measured; steps with more rows are extrapolated.
const GROUPS: usize = 17;
/// Assumed cost of a further group of rows, as a share of a step with one row, until it is measured.
const UNMEASURED: f64 = 0.15;
/// Weight of a new time in the mean.
const NEW: f64 = 0.125;

/// Mean times of steps that decode, in seconds: with one row, and with each number of groups of rows, since kernels take
/// a group as a whole.
#[derive(Debug, Default)]
pub(super) struct Cost([Option<f64>; GROUPS]);

impl Cost {
    /// Records that a step with `rows` rows took `elapsed`.
    pub(super) fn note(&mut self, rows: usize, elapsed: Duration) {
        let time = elapsed.as_secs_f64();
        if let Some(mean) = self.0.get_mut(group(rows)).filter(|_| time > 0.0) {
            *mean = Some(mean.map_or(time, |mean| mean + NEW * (time - mean)));
        }
    }

    /// The mean time of steps with `rows` rows, if measured.
    pub(super) fn measured(&self, rows: usize) -> Option<f64> {
        self.0.get(group(rows)).copied().flatten()
    }

    /// Whether any step was measured.
    pub(super) fn is_measured(&self) -> bool {
        self.0.iter().any(Option::is_some)
    }

    /// The estimated time of a step with `rows` rows; in arbitrary units if nothing was measured.
    pub(super) fn of(&self, rows: usize) -> f64 {
        let group = group(rows);
        let measured = |group: usize| self.0.get(group).copied().flatten().map(|time| (group, time));
        let mut below = (0..=group).rev().filter_map(measured);
        let above = (group + 1..GROUPS).find_map(measured);
        match (below.next(), above.or_else(|| below.next())) {
            (None, None) => guess(group),
            (Some((at, time)), None) | (None, Some((at, time))) => time * guess(group) / guess(at),
            (Some((at, time)), Some(_)) if at == group => time,
            (Some(near), Some(other)) => on_line(near, other, group),
        }
    }
}

/// The value at `group` of the line through two points; the slope is at least 0.
fn on_line((a, time): (usize, f64), (b, other): (usize, f64), group: usize) -> f64 {
    let slope = (other - time) / (b as f64 - a as f64);
    time + slope.max(0.0) * (group as f64 - a as f64)
}

/// The assumed time of a step with this group of rows, relative to one with a single row.
fn guess(group: usize) -> f64 {
    1.0 + UNMEASURED * group as f64
}

/// 0 for one row, otherwise how many times the kernels read the weights.
fn group(rows: usize) -> usize {
    if rows <= 1 { 0 } else { rows.div_ceil(ROWS_AT_A_TIME) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_follows_from_what_was() {
        let mut cost = Cost::default();
        assert!(cost.of(1) < cost.of(2) && cost.of(2) == cost.of(4) && cost.of(4) < cost.of(5));
        cost.note(1, Duration::from_millis(10));
        assert_eq!(cost.of(1), 0.010);
        assert!((cost.of(8) - 0.013).abs() < 1e-9);
        cost.note(3, Duration::from_millis(20));
        assert_eq!(cost.of(4), 0.020);
        assert!((cost.of(8) - 0.030).abs() < 1e-9 && cost.of(1) == 0.010, "a line through both");
        cost.note(16, Duration::from_millis(50));
        assert!((cost.of(8) - 0.030).abs() < 1e-9 && (cost.of(20) - 0.060).abs() < 1e-9);
        (0..100).for_each(|_| cost.note(1, Duration::from_millis(18)));
        assert!((cost.of(1) - 0.018).abs() < 1e-4);
    }
}
