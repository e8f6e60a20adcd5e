//! Points: when a sequence evicts positions. They are fixed positions that depend only on the retention, the
//! prompt's length and the context, so batching, prefill chunks and warm prefixes do not change them.

use std::ops::Range;

use super::amounts::{Budget, Keep};
use super::error::RetentionError;
use super::facts::{Watch, WatchedRows};
use super::heads::{WEIGHT_MAX, WEIGHT_MIN};
use super::retention::Retention;

/// The numbers of tokens at which a sequence evicts positions: once that many have been computed, before the next
/// one.
///
/// The end of the prompt is a point, and during generation every `every` tokens after it. A prompt that is longer
/// than may be stored (`n` tokens to keep plus `every`, or the context) is compressed during prefill, at that
/// length and every `every` tokens after it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Points {
    retention: Retention,
    prompt: usize,
    every: usize,
    /// The range of points within the prompt: the first point, and the exclusive end; equal if there are none.
    thinned: (usize, usize),
    /// True if there are fixed points.
    are_fixed: bool,
    /// True if there are points after the prompt.
    goes_on: bool,
    /// Number of KV heads of all layers, and of the group of layers with the fewest that shares room.
    heads: (usize, usize),
}

impl Retention {
    /// The points of a sequence with a prompt of `prompt` tokens in a context of `context` tokens. `keep` must not
    /// be in bytes: call [`Retention::resolve`] first.
    pub fn points(&self, prompt: usize, context: usize) -> Points {
        let repeats = self.watch() == Watch::Repeat;
        let rows = match self.watch() {
            Watch::Attention { rows: WatchedRows::Last(rows), .. } => rows,
            _ => 0,
        };
        let every = self.every.max(1);
        let stored_max = match self.keep {
            Keep::Tokens(tokens) => tokens.saturating_add(every),
            Keep::Share(_) | Keep::Bytes(_) => context,
        };
        // The rows before the prompt's end matter most: no point within the prompt may evict them.
        let end = prompt.saturating_sub(rows);
        let thinned = if repeats { (prompt, prompt) } else { (stored_max, end.max(stored_max)) };
        let are_fixed = self.when.at_points();
        Points { retention: *self, prompt, every, thinned, are_fixed, goes_on: !repeats, heads: (1, 1) }
    }

    /// The rows among `rows` whose attention or queries are observed, for a sequence whose last point was at
    /// `passed` tokens; `rows` must not extend beyond the next point.
    pub fn watched(&self, points: &Points, passed: usize, rows: Range<usize>) -> Range<usize> {
        let observes = matches!(self.watch(), Watch::Attention { .. } | Watch::Queries { .. });
        let watched = match points.next(passed).filter(|_| observes) {
            Some(point) => points.watched(point),
            // The sequence may have to evict positions at any time.
            None if observes && self.when.under_pressure() => rows.clone(),
            None => 0..0,
        };
        let start = watched.start.clamp(rows.start, rows.end);
        start..watched.end.clamp(start, rows.end)
    }

    /// The points of a sequence that evicts positions once, when it has `at` tokens.
    pub fn point_at(&self, at: usize) -> Points {
        Points { thinned: (at, at), are_fixed: true, goes_on: false, ..self.points(at, at) }
    }

    /// Returns whether a sequence may have more tokens than a context of `context` tokens: the RoPE rotation of all its
    /// leading positions is renewed at points, and between them no head stores more positions than the context has. A
    /// share of the tokens grows with them. `keep` must not be in bytes: call [`Retention::resolve`] first.
    pub fn streams(&self, context: usize) -> bool {
        let sinks = self.rotated_sinks();
        sinks > 0 && self.protect <= sinks && self.when.at_points() && self.stored_by_head() <= context
    }

    /// Maximum number of positions that a KV head stores between points, of sequences of any length.
    fn stored_by_head(&self) -> usize {
        let Keep::Tokens(mean) = self.keep else { return usize::MAX };
        let times = match self.budget {
            Budget::Head | Budget::Layer { .. } | Budget::All => 1,
            Budget::Pyramid { .. } => 2,
            Budget::Calibrated => (WEIGHT_MAX / WEIGHT_MIN) as usize,
        };
        mean.saturating_mul(times).saturating_add(self.every)
    }

    /// Checks that a prompt of `prompt` tokens can be computed in a context of `context` tokens.
    ///
    /// # Errors
    /// If it is longer than the context, and the policy cannot compress it during prefill.
    pub fn check_prompt(&self, prompt: usize, context: usize) -> Result<(), RetentionError> {
        if self.watch() == Watch::Repeat && prompt > context {
            let policy = self.policy.name();
            return Err(RetentionError::PromptLong { policy, prompt, context });
        }
        Ok(())
    }
}

impl Points {
    /// The first point after `position` tokens, exclusive. `None` if there is none.
    pub fn next(&self, position: usize) -> Option<usize> {
        if !self.are_fixed {
            return None;
        }
        let (first, end) = self.thinned;
        let step_after = |start: usize| match position.checked_sub(start) {
            None => start,
            Some(past) => start + (past / self.every + 1) * self.every,
        };
        let thinned = step_after(first);
        if thinned < end {
            return Some(thinned);
        }
        if position < self.prompt {
            return Some(self.prompt);
        }
        self.goes_on.then(|| step_after(self.prompt))
    }

    /// The last point before `position` tokens, exclusive, or 0.
    fn previous(&self, position: usize) -> usize {
        if !self.are_fixed {
            return 0;
        }
        let (first, end) = self.thinned;
        let last_before = |start: usize, position: usize| {
            let past = position.checked_sub(start + 1)?;
            Some(start + past / self.every * self.every)
        };
        if position > self.prompt {
            return if self.goes_on { last_before(self.prompt, position).unwrap_or(0) } else { self.prompt };
        }
        if first == end { 0 } else { last_before(first, position.min(end)).unwrap_or(0) }
    }

    /// The rows that are observed before the point `at`: of those that [`Retention::rows_before`] returns, the ones
    /// since the last point.
    pub fn watched(&self, at: usize) -> Range<usize> {
        self.previous(at).max(self.retention.rows_before(at).start)..at
    }

    /// The same for storage in which only the layers of a group share room, of so many KV heads each: where layers
    /// compete, one group may retain most of what all of them may.
    pub fn in_groups(self, groups: &[usize]) -> Points {
        let least = groups.iter().copied().filter(|&heads| heads > 0).min().unwrap_or(1);
        Points { heads: (groups.iter().sum::<usize>().max(least), least), ..self }
    }

    /// Maximum number of positions that a KV head retains at a point up to `positions` tokens, on average over the
    /// heads of a group.
    pub fn kept_max(&self, positions: usize) -> usize {
        let (mean, (all, least)) = (self.retention.keep.positions(positions, 1), self.heads);
        let by_group = || mean.saturating_mul(all).div_ceil(least);
        let kept = match self.retention.budget {
            Budget::Head | Budget::Layer { .. } => mean,
            Budget::Pyramid { .. } => by_group().min(mean.saturating_mul(2)),
            Budget::All | Budget::Calibrated => by_group(),
        };
        kept.min(positions)
    }

    /// Maximum number of positions that a KV head stores at any time until the sequence has `positions` tokens, on
    /// average over the heads of a group.
    pub fn stored_max(&self, positions: usize) -> usize {
        // With equal steps later ends store more, so the ends of the runs of equal steps suffice.
        let (first, end) = self.thinned;
        let last = self.previous(positions.saturating_add(1));
        let ends = [first, self.previous(end), self.prompt, last, positions];
        let ends = ends.into_iter().filter(|&end| end > 0 && end <= positions);
        let stored = |end| match self.previous(end) {
            0 => end,
            point => self.kept_max(point) + (end - point),
        };
        ends.map(stored).max().unwrap_or(0)
    }
}
