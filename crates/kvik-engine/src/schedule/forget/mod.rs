//! A sequence that forgets: what it watches, when it forgets, and where it stores what it keeps.
//!
//! Until its first point a sequence is like any other: exact, in blocks that it publishes. At a point it takes
//! part in no batch while a [`Pass`] is made: layer by layer facts are gathered, once for all it is decided what
//! stays, layer by layer that is moved to blocks of its own. From then on nothing that it computes is published.
//!
//! All of it is a function of the tokens and the retention. So a sequence that was preempted begins anew, exact up
//! to its first point, and passes the same points again. That holds for points at which memory was short as well: they
//! depend on others, and once passed they belong to the sequence.

pub(super) mod kept;
mod pass;

use std::fmt;
use std::ops::Range;

use kvik_cache::retain::{Decision, Points, PolicyState, Retention, Watch, WatchedRows};
use kvik_cache::{SeqId, Token, blocks_for};

use crate::model::observation::Observation;
use crate::retain::{Ragged, Sinks};

pub(super) use pass::{Pass, Stage};

/// What a sequence that forgets has besides its tokens.
pub(super) struct Forgetting {
    pub(super) retention: Retention,
    points: Points,
    /// Leading tokens of the prompt of which only what it keeps is read, and which others may share.
    pub(super) prefix: Option<usize>,
    /// Points besides, at which memory was short. They stay when it begins anew, so that it answers the same.
    tightened: Vec<usize>,
    /// The last point that was passed.
    passed: usize,
    pub(super) observation: Observation,
    pub(super) state: PolicyState,
    /// Where it stores what it kept; `None` before the first point.
    pub(super) storage: Option<Ragged>,
    /// Its first keys, where they are rotated anew at each point.
    pub(super) sinks: Option<Sinks>,
    /// What is under way at a point.
    pub(super) pass: Option<Pass>,
}

impl Forgetting {
    /// A sequence with a prompt of `prompt` tokens that has computed nothing yet.
    pub(super) fn new(retention: Retention, prompt: usize, context: usize) -> Forgetting {
        Forgetting::at(retention, retention.points(prompt, context), None)
    }

    /// A sequence that forgets when it has `prefix` tokens, and keeps all that follows.
    pub(super) fn of_prefix(retention: Retention, prefix: usize) -> Forgetting {
        debug_assert_eq!(retention, retention.of_prefix(), "else its part would have another name");
        Forgetting::at(retention, retention.point_at(prefix), Some(prefix))
    }

    /// The same for a sequence that begins anew.
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

    /// The number of tokens at which it forgets next.
    pub(super) fn next_point(&self) -> Option<usize> {
        self.point_after(self.passed)
    }

    fn point_after(&self, position: usize) -> Option<usize> {
        let tightened = self.tightened.iter().copied().find(|&point| point > position);
        self.points.next(position).into_iter().chain(tightened).min()
    }

    /// Memory is short: `at` tokens are a point as well.
    pub(super) fn tighten(&mut self, at: usize) {
        self.tightened.push(at);
    }

    /// `at` tokens are no point any more; whether they were one because memory was short.
    pub(super) fn withdraw(&mut self, at: usize) -> bool {
        let withdrawn = self.tightened.last() == Some(&at) && self.points.next(self.passed) != Some(at);
        if withdrawn {
            self.tightened.pop();
            self.pass = None;
        }
        withdrawn
    }

    /// The points so far at which memory was short.
    pub(super) fn tightened(&self) -> Vec<usize> {
        self.tightened.iter().copied().filter(|&point| point <= self.passed).collect()
    }

    /// Blocks for what it would keep of `tokens` tokens if memory were short, when it may be told to forget.
    pub(super) fn blocks_to_tighten(&self, tokens: usize) -> Option<usize> {
        // Heads end within a tile each, which may take a block more than their positions.
        let kept = || blocks_for(self.points.kept_max(tokens)) + 1;
        self.retention.when.under_pressure().then(kept)
    }

    /// Whether it forgot so lately that it would gain little.
    pub(super) fn has_just_forgotten(&self, stored: usize) -> bool {
        self.passed > 0 && stored < self.passed + self.retention.every
    }

    /// Leading tokens that are computed exactly.
    pub(super) fn exact_until(&self) -> usize {
        self.point_after(0).unwrap_or(usize::MAX)
    }

    /// Leading tokens that others may have computed: what is observed of rows must be observed here.
    pub(super) fn reuse_max(&self) -> usize {
        let exact = self.exact_until();
        match self.retention.watch() {
            Watch::Nothing | Watch::Repeat => exact,
            Watch::Queries { .. } | Watch::Attention { rows: WatchedRows::All, .. } => 0,
            Watch::Attention { rows: WatchedRows::Last(_), .. } => self.points.watched(exact).start,
        }
    }

    /// Of the rows that compute the tokens `rows`, those that are watched.
    pub(super) fn watched(&self, rows: Range<usize>) -> Range<usize> {
        self.retention.watched(&self.points, self.passed, rows)
    }

    /// Whether it stores less than all, so that nothing it computes is what others would compute.
    pub(super) fn has_forgotten(&self) -> bool {
        self.storage.is_some()
    }

    /// What was kept of its prefix is there already, in `storage`.
    pub(super) fn begin_with(&mut self, prefix: usize, storage: Ragged) {
        self.passed = prefix;
        self.storage = Some(storage);
    }

    /// A point was passed: what was kept is in `storage`.
    pub(super) fn pass_point(&mut self, at: usize, decision: &Decision, storage: Ragged) {
        self.observation.pass_point(&self.retention, decision);
        self.passed = at;
        self.storage = Some(storage);
        self.pass = None;
    }

    /// What is to be computed next to repeat the prompt, when that is under way.
    pub(super) fn repeat(&self) -> Option<&[Token]> {
        let Stage::Repeat { pieces, done } = &self.pass.as_ref()?.stage else { return None };
        pieces.last().map(|piece| &piece.tokens[*done..])
    }

    /// How many rows of it are computed already.
    pub(super) fn repeated(&self) -> usize {
        match self.pass.as_ref().map(|pass| &pass.stage) {
            Some(Stage::Repeat { done, .. }) => *done,
            _ => 0,
        }
    }

    /// Positions behind the tokens that repeating takes.
    pub(super) fn repeat_rows(&self) -> usize {
        match self.pass.as_ref().map(|pass| &pass.stage) {
            Some(Stage::Repeat { pieces, .. }) => pieces.last().map_or(0, |piece| piece.tokens.len()),
            _ => 0,
        }
    }

    /// `rows` more rows of the prompt were repeated.
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

    /// The stored positions among which attention of the repeated piece counts, of `stored` tokens.
    pub(super) fn among(&self, stored: usize) -> Vec<Range<usize>> {
        match self.pass.as_ref().map(|pass| &pass.stage) {
            Some(Stage::Repeat { pieces, .. }) => {
                pieces.last().map_or_else(Vec::new, |piece| piece.among(stored))
            }
            _ => Vec::new(),
        }
    }

    /// The name in the cache of the blocks to which it moves what it keeps.
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
