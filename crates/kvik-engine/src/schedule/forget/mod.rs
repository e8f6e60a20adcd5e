//! A sequence with a retention policy: what it observes, when it compresses, and where it stores the retained
//! positions.
//!
//! Until its first point a sequence is like any other: exact, in blocks that it publishes. At a point it takes part in
//! no batch while a [`Pass`] is made: facts are gathered layer by layer, the retained positions are decided once for
//! all layers, and they are moved layer by layer to blocks of its own. From then on none of its blocks are published.
//!
//! All of this is a function of the tokens and the retention policy. So a preempted sequence starts again, exact up to
//! its first point, and passes the same points. That includes points caused by memory pressure: they depend on other
//! requests, but once passed they belong to the sequence.

pub(super) mod kept;
mod pass;

use std::fmt;
use std::ops::Range;

use kvik_cache::retain::{Decision, Points, PolicyState, Retention, Watch, WatchedRows};
use kvik_cache::{SeqId, Token, blocks_for};
use kvik_model::observation::{Observation, Repeated};

use crate::retain::{Ragged, Sinks};

pub(super) use pass::{Pass, Stage};

/// The state of a sequence with a retention policy, in addition to its tokens.
pub(super) struct Forgetting {
    pub(super) retention: Retention,
    points: Points,
    /// Leading tokens of the prompt of which only the retained positions are read, and which are shared in that form.
    pub(super) prefix: Option<usize>,
    /// Additional points caused by memory pressure. They survive a restart, so that the sequence answers the same.
    tightened: Vec<usize>,
    /// The last point that was passed.
    passed: usize,
    pub(super) observation: Observation,
    pub(super) state: PolicyState,
    /// Storage of the retained positions; `None` before the first point.
    pub(super) storage: Option<Ragged>,
    /// Its first keys, if their RoPE rotation is renewed at each point.
    pub(super) sinks: Option<Sinks>,
    /// The pass in progress.
    pub(super) pass: Option<Pass>,
}

impl Forgetting {
    /// State for a sequence with these points that has computed nothing yet.
    pub(super) fn new(retention: Retention, points: Points) -> Forgetting {
        Forgetting::at(retention, points, None)
    }

    /// State for a sequence that compresses its first `prefix` tokens, and retains everything after them.
    pub(super) fn of_prefix(retention: Retention, prefix: usize) -> Forgetting {
        debug_assert_eq!(retention, retention.of_prefix(), "else its part would have another name");
        Forgetting::at(retention, retention.point_at(prefix), Some(prefix))
    }

    /// State for the sequence after a restart.
    pub(super) fn anew(&self) -> Forgetting {
        let tightened = self.tightened.clone();
        Forgetting { tightened, ..Forgetting::at(self.retention, self.points, self.prefix) }
    }

    fn at(retention: Retention, points: Points, prefix: Option<usize>) -> Forgetting {
        Forgetting {
            retention,
            points,
            prefix,
            tightened: Vec::new(),
            passed: 0,
            observation: Observation::default(),
            state: PolicyState::default(),
            storage: None,
            sinks: None,
            pass: None,
        }
    }

    /// The number of tokens at which the next pass is made.
    pub(super) fn next_point(&self) -> Option<usize> {
        self.point_after(self.passed)
    }

    fn point_after(&self, position: usize) -> Option<usize> {
        let tightened = self.tightened.iter().copied().find(|&point| point > position);
        self.points.next(position).into_iter().chain(tightened).min()
    }

    /// Adds a point at `at` tokens because of memory pressure.
    pub(super) fn tighten(&mut self, at: usize) {
        self.tightened.push(at);
    }

    /// Removes the point at `at` tokens; returns whether it was caused by memory pressure alone.
    pub(super) fn withdraw(&mut self, at: usize) -> bool {
        let withdrawn = self.tightened.last() == Some(&at) && self.points.next(self.passed) != Some(at);
        if withdrawn {
            self.tightened.pop();
            self.pass = None;
        }
        withdrawn
    }

    /// The points passed so far that memory pressure caused.
    pub(super) fn tightened(&self) -> Vec<usize> {
        self.tightened.iter().copied().filter(|&point| point <= self.passed).collect()
    }

    /// Blocks for the retained positions of `tokens` tokens if memory pressure forced a pass; `None` if the policy does
    /// not allow that.
    pub(super) fn blocks_to_tighten(&self, tokens: usize) -> Option<usize> {
        // Each head ends within a tile, which may take a block more than its positions.
        let kept = || blocks_for(self.points.kept_max(tokens)) + 1;
        self.retention.when.under_pressure().then(kept)
    }

    /// Whether the last pass was so recent that another would gain little.
    pub(super) fn has_just_forgotten(&self, stored: usize) -> bool {
        self.passed > 0 && stored < self.passed + self.retention.every
    }

    /// Number of leading tokens that are computed exactly.
    pub(super) fn exact_until(&self) -> usize {
        self.point_after(0).unwrap_or(usize::MAX)
    }

    /// Number of leading tokens that may come from the cache: rows that are observed must be computed here.
    pub(super) fn reuse_max(&self) -> usize {
        let exact = self.exact_until();
        match self.retention.watch() {
            Watch::Nothing | Watch::Repeat => exact,
            Watch::Queries { .. } | Watch::Attention { rows: WatchedRows::All, .. } => 0,
            Watch::Attention { rows: WatchedRows::Last(_), .. } => self.points.watched(exact).start,
        }
    }

    /// The rows to observe among those that compute the tokens `rows`.
    pub(super) fn watched(&self, rows: Range<usize>) -> Range<usize> {
        self.retention.watched(&self.points, self.passed, rows)
    }

    /// Whether positions were dropped, so that its blocks differ from those of a sequence without retention.
    pub(super) fn has_forgotten(&self) -> bool {
        self.storage.is_some()
    }

    /// Starts after the compressed prefix that `storage` holds.
    pub(super) fn begin_with(&mut self, prefix: usize, storage: Ragged) {
        self.passed = prefix;
        self.storage = Some(storage);
    }

    /// Records that a point was passed: the retained positions are in `storage`.
    pub(super) fn pass_point(&mut self, at: usize, decision: &Decision, storage: Ragged) {
        self.observation.pass_point(&self.retention, decision);
        self.passed = at;
        self.storage = Some(storage);
        self.pass = None;
    }

    /// The tokens to compute next to repeat the prompt, if that is in progress.
    pub(super) fn repeat(&self) -> Option<&[Token]> {
        let Stage::Repeat { pieces, done } = &self.pass.as_ref()?.stage else { return None };
        pieces.last().map(|piece| &piece.tokens[*done..])
    }

    /// Number of rows of the current piece that are computed already.
    pub(super) fn repeated(&self) -> usize {
        match self.pass.as_ref().map(|pass| &pass.stage) {
            Some(Stage::Repeat { done, .. }) => *done,
            _ => 0,
        }
    }

    /// Number of positions after the tokens that the repetition takes.
    pub(super) fn repeat_rows(&self) -> usize {
        match self.pass.as_ref().map(|pass| &pass.stage) {
            Some(Stage::Repeat { pieces, .. }) => pieces.last().map_or(0, |piece| piece.tokens.len()),
            _ => 0,
        }
    }

    /// Records that `rows` more rows of the prompt were repeated.
    pub(super) fn note_repeated(&mut self, rows: usize) {
        let Some(Stage::Repeat { pieces, done }) = self.pass.as_mut().map(|pass| &mut pass.stage) else {
            return;
        };
        *done += rows;
        if pieces.last().is_some_and(|piece| piece.tokens.len() == *done) {
            pieces.pop();
            *done = 0;
        }
    }

    /// The stored positions, of `stored` tokens, on which the attention of the repeated piece is counted.
    pub(super) fn among(&self, stored: usize) -> Vec<Range<usize>> {
        match self.pass.as_ref().map(|pass| &pass.stage) {
            Some(Stage::Repeat { pieces, .. }) => {
                pieces.last().map_or_else(Vec::new, |piece| piece.among(stored))
            }
            _ => Vec::new(),
        }
    }

    /// The rows whose queries are kept if `rows` of a batch repeat the next tokens of a sequence of `stored` tokens.
    pub(super) fn repeats(&self, rows: Range<usize>, stored: usize) -> Option<Repeated> {
        match self.pass.as_ref().map(|pass| &pass.stage) {
            Some(Stage::Repeat { pieces, done }) if self.retention.fits_values() => {
                pieces.last().map(|piece| piece.repeats(rows.start, *done..done + rows.len(), stored))
            }
            _ => None,
        }
    }

    /// The cache sequence of the blocks to which the retained positions are moved.
    pub(super) fn moves_to(&self) -> Option<SeqId> {
        match self.pass.as_ref()?.stage {
            Stage::Move { id, .. } => Some(id),
            _ => None,
        }
    }
}

impl fmt::Debug for Forgetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Forgetting { retention, passed, storage, .. } = self;
        let kept = storage.as_ref().map(|storage| storage.stored(*passed));
        f.debug_struct("Forgetting")
            .field("retention", retention)
            .field("passed", passed)
            .field("kept", &kept)
            .finish_non_exhaustive()
    }
}
