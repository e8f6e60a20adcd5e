//! Drafts: tokens with which a sequence may go on, computed beside its next one.
//!
//! ```text
//!   rows of a step     last token │ draft[0]  draft[1]  draft[2]      each with logits
//!   drawn from them       t0          t1        t2
//!                                  t0 = draft[0], t1 = draft[1], t2 ≠ draft[2]: three tokens from one step
//! ```
//!
//! Logits do not depend on the batch, and tokens are drawn one after the other as without drafts. So a token that was
//! drafted and is drawn is *the* token, whatever it was drawn by; those after the first that was not drawn are forgotten,
//! and what they stored is overwritten.
//!
//! | module   | cares about                                              |
//! |----------|----------------------------------------------------------|
//! | `lookup` | what followed the last tokens in the same sequence       |
//! | `model`  | what a smaller model says next                           |
//! | `record` | how often what a source found was drawn                  |
//!
//! What is drafted is a matter of time alone: as many tokens as make most of a step, by what was drawn of earlier drafts
//! and by what steps have taken.

mod lookup;
mod model;
mod record;

use std::time::Duration;

use kvik_cache::{Followers, Token};

use self::lookup::Lookup;
use self::record::{MODEL_LIKELY, Record};
use super::cost::Cost;
use crate::config::ROWS_AT_A_TIME;
use crate::stats::DraftSource;

pub use self::model::DraftSetup;
pub(super) use self::model::{DraftModel, WantedDraft};

/// Tokens that are drafted for one sequence at most.
pub(super) const DRAFT_MAX: usize = 15;
/// Tokens that a model drafts for one sequence at most: each takes a pass of it.
const MODEL_MAX: usize = 8;
/// A draft model that is not worth its time is tried again after so many tokens of a sequence.
const TRY_AGAIN: usize = 256;
/// The share of a new outcome in how likely a token of the draft model is in sequences to come.
const NEW: f64 = 0.02;
/// Drafts must make a step so much better to be worth it: what they cost is a guess at first.
const GAIN_MIN: f64 = 1.05;

/// Tokens with which a sequence may go on.
#[derive(Debug, Clone, Default)]
pub(super) struct Draft {
    pub(super) tokens: Vec<Token>,
    pub(super) source: DraftSource,
    /// How likely each of them is drawn if the one before it was.
    pub(super) likely: f64,
}

/// What is known about drafting in all sequences.
#[derive(Debug)]
pub(super) struct Drafting {
    /// Of the model that is drafted for.
    cost: Cost,
    /// Of the draft model, for a token of so many sequences.
    passes: Cost,
    /// How likely a token of the draft model is drawn if the one before it was.
    likely: f64,
}

impl Default for Drafting {
    fn default() -> Drafting {
        Drafting { cost: Cost::default(), passes: Cost::default(), likely: MODEL_LIKELY }
    }
}

/// What is known of the drafts of one sequence.
#[derive(Debug, Default)]
pub(super) struct Drafter {
    lookup: Lookup,
    /// By source.
    records: [Record; DraftSource::ALL.len()],
}

impl Drafter {
    /// Compares what the sources found last with what was drawn.
    pub(super) fn learn(&mut self, tokens: &[Token]) {
        for (&source, record) in DraftSource::ALL.iter().zip(&mut self.records) {
            record.learn(source, tokens);
        }
    }

    /// Looks tokens up in themselves.
    pub(super) fn look_up(&mut self, tokens: &[Token], most: usize) {
        let found = self.lookup.find(tokens, most);
        self.offer(DraftSource::Lookup, found, tokens.len());
    }

    /// What a source has found for a sequence of `len` tokens, if it has found anything.
    pub(super) fn offer(&mut self, source: DraftSource, found: Option<Followers>, len: usize) {
        self.records[source as usize].note(found, len);
    }

    /// How likely a token of the draft model is drawn; where nothing was compared yet, as in other sequences.
    pub(super) fn likely_of_model(&mut self, drafting: &Drafting) -> f64 {
        let record = &mut self.records[DraftSource::Model as usize];
        record.expect(drafting.likely);
        record.likely(DraftSource::Model, 0)
    }

    /// What of the offers promises most tokens.
    pub(super) fn best(&self) -> Draft {
        let drafts = DraftSource::ALL.iter().zip(&self.records).filter_map(|(&source, record)| {
            let (tokens, likely) = record.last(source)?;
            Some(Draft { tokens: tokens.to_vec(), source, likely })
        });
        drafts.max_by(|a, b| a.expected().total_cmp(&b.expected())).unwrap_or_default()
    }
}

impl Draft {
    /// Tokens that can be expected to be drawn.
    pub(super) fn expected(&self) -> f64 {
        expected(self.likely, self.tokens.len())
    }
}

/// Tokens that can be expected to be drawn of so many that are so likely.
pub(super) fn expected(likely: f64, len: usize) -> f64 {
    (1..=len as i32).map(|position| likely.powi(position)).sum()
}

impl Drafting {
    /// A step that decoded took so long.
    pub(super) fn note(&mut self, rows: usize, elapsed: Duration) {
        self.cost.note(rows, elapsed);
    }

    /// A pass of the draft model took so long.
    pub(super) fn note_pass(&mut self, sequences: usize, elapsed: Duration) {
        self.passes.note(sequences, elapsed);
    }

    /// Of a draft of the draft model so many tokens were drawn.
    pub(super) fn note_model(&mut self, drafted: usize, drawn: usize) {
        for position in 0..(drawn + 1).min(drafted) {
            self.likely += NEW * (f64::from(u8::from(position < drawn)) - self.likely);
        }
    }

    /// How many tokens the draft model is asked for, for one of `sequences` in a step of `rows` rows; the sequence has
    /// `len` tokens and takes one of the model for so `likely`. As many as make most of the time of both models.
    pub(super) fn ask(&self, rows: usize, sequences: usize, len: usize, likely: f64) -> usize {
        if !self.passes.is_measured() {
            return 1;
        }
        let rate = |count: usize| {
            let drawn = rows as f64 + sequences as f64 * expected(likely, count);
            drawn / (self.cost.of(rows + sequences * count) + count as f64 * self.passes.of(sequences))
        };
        let plain = GAIN_MIN * rate(0);
        let best = (1..=MODEL_MAX).max_by(|&a, &b| rate(a).total_cmp(&rate(b)));
        let best = best.filter(|&count| rate(count) > plain);
        best.unwrap_or_else(|| usize::from(len.is_multiple_of(TRY_AGAIN)))
    }

    /// How many tokens of each draft to compute beside `rows` others, `drafts_max` in all: of each so many. `decoding` of
    /// the rows are the next tokens of sequences, which is what drafts make more of; the others are of prompts.
    pub(super) fn lengths(
        &self,
        rows: usize,
        decoding: usize,
        drafts: &[Draft],
        drafts_max: usize,
    ) -> Vec<usize> {
        let mut tokens: Vec<(f64, usize)> = Vec::new();
        for (index, Draft { tokens: drafted, likely, .. }) in drafts.iter().enumerate() {
            tokens.extend((1..=drafted.len()).map(|position| (likely.powi(position as i32), index)));
        }
        // A token is never likelier than the one before it, and stands behind it where they are the same.
        tokens.sort_by(|a, b| b.0.total_cmp(&a.0));
        tokens.truncate(drafts_max);
        let plain = decoding as f64 / self.cost.of(rows);
        let (mut best, mut best_len, mut expected) = (plain * GAIN_MIN, 0, decoding as f64);
        for (count, (likely, _)) in (1..).zip(&tokens) {
            expected += likely;
            let fills = (rows + count).is_multiple_of(ROWS_AT_A_TIME) || count == tokens.len();
            let rate = expected / self.cost.of(rows + count);
            if fills && rate > best {
                (best, best_len) = (rate, count);
            }
        }
        let mut lengths = vec![0; drafts.len()];
        tokens[..best_len].iter().for_each(|&(_, index)| lengths[index] += 1);
        lengths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of drafts of so many tokens that are so likely.
    fn lengths(drafting: &Drafting, rows: usize, drafts: &[(usize, f64)], drafts_max: usize) -> Vec<usize> {
        let draft = |&(len, likely)| Draft { tokens: vec![7; len], likely, ..Draft::default() };
        drafting.lengths(rows, rows, &drafts.iter().map(draft).collect::<Vec<_>>(), drafts_max)
    }

    #[test]
    fn drafts_fill_groups_of_rows_where_they_are_worth_it() {
        let drafting = Drafting::default();
        assert_eq!(lengths(&drafting, 1, &[(15, 0.95)], 32), [15]);
        assert_eq!(lengths(&drafting, 1, &[(15, 0.3)], 32), [3]);
        assert_eq!(lengths(&drafting, 1, &[(15, 0.1)], 32), [0]);
        assert_eq!(lengths(&drafting, 1, &[(2, 0.9)], 32), [2]);
        assert_eq!(lengths(&drafting, 1, &[(15, 0.95)], 5), [5]);
        assert_eq!(lengths(&drafting, 4, &[(0, 0.0), (15, 0.9), (15, 0.2), (0, 0.0)], 4), [0, 4, 0, 0]);
        assert!(lengths(&drafting, 16, &[(15, 0.2); 16], 32).iter().all(|&len| len == 0));
        let mut slow = Drafting::default();
        slow.note(1, Duration::from_millis(10));
        slow.note(4, Duration::from_millis(40));
        slow.note(16, Duration::from_millis(160));
        assert_eq!(lengths(&slow, 1, &[(15, 0.9)], 32), [0], "rows that cost as much as steps");
    }

    /// A step of 65 rows, 64 of them of a prompt: drafts are worth it for the one sequence that decodes.
    #[test]
    fn beside_prompts_drafts_are_weighed_by_those_that_decode() {
        let lengths = |likely| {
            let draft = Draft { tokens: vec![7; 15], likely, ..Draft::default() };
            Drafting::default().lengths(65, 1, &[draft], 7)
        };
        assert_eq!([0.95, 0.3, 0.02].map(lengths), [[7], [3], [0]], "3 fill a group that is computed anyway");
    }

    #[test]
    fn a_draft_model_is_asked_for_what_makes_most_of_the_time_of_both() {
        let mut drafting = Drafting::default();
        assert_eq!(drafting.ask(1, 1, 7, 0.9), 1, "to see how long it takes");
        drafting.note(1, Duration::from_millis(40));
        drafting.note(8, Duration::from_millis(50));
        drafting.note_pass(1, Duration::from_millis(4));
        assert_eq!(drafting.ask(1, 1, 7, 0.95), 7, "two groups of rows");
        assert!((2..=5).contains(&drafting.ask(1, 1, 7, 0.7)), "{}", drafting.ask(1, 1, 7, 0.7));
        assert_eq!(drafting.ask(1, 1, 7, 0.05), 0);
        assert_eq!(drafting.ask(1, 1, 2 * TRY_AGAIN, 0.05), 1, "things may have changed");
        let mut slow = Drafting::default();
        slow.note(1, Duration::from_millis(40));
        slow.note_pass(1, Duration::from_millis(40));
        assert_eq!(slow.ask(1, 1, 7, 0.9), 0, "as slow as what it drafts for");
        (0..200).for_each(|_| drafting.note_model(4, 0));
        assert!(drafting.likely < 0.05, "{}", drafting.likely);
        (0..200).for_each(|_| drafting.note_model(4, 4));
        assert!(drafting.likely > 0.9, "{}", drafting.likely);
    }

    #[test]
    fn the_source_that_promises_most_is_followed() {
        let mut drafter = Drafter::default();
        let tokens: Vec<Token> = (0..20).chain(0..4).collect();
        drafter.look_up(&tokens, 4);
        assert_eq!(
            (drafter.best().source, &drafter.best().tokens[..]),
            (DraftSource::Lookup, &[4, 5, 6, 7][..])
        );
        let found = Followers { tokens: vec![50; 4], same: 30 };
        drafter.offer(DraftSource::Tree, Some(found), tokens.len());
        assert_eq!((drafter.best().source, drafter.best().tokens), (DraftSource::Tree, vec![50; 4]));
        // Both are compared with what comes, also the one that was not followed.
        let mut tokens = tokens;
        for token in 4..9 {
            tokens.push(token);
            drafter.learn(&tokens);
            drafter.look_up(&tokens, 4);
            let found = Followers { tokens: vec![50; 4], same: 30 };
            drafter.offer(DraftSource::Tree, Some(found), tokens.len());
        }
        assert_eq!(drafter.best().source, DraftSource::Lookup);
    }
}
