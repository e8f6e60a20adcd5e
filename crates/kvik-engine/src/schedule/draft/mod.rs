//! Drafts: candidate tokens for the continuation of a sequence, verified in the same step as its next token.
//!
//! ```text
//!   rows of a step       last token │ draft[0]  draft[1]  draft[2]      each with logits
//!   sampled from them       t0          t1        t2
//!                                  t0 = draft[0], t1 = draft[1], t2 ≠ draft[2]: three tokens from one step
//! ```
//!
//! Logits do not depend on the batch, and tokens are sampled one after the other as without drafts. So an accepted
//! token is exactly the token that would have been sampled without a draft; tokens after the first mismatch are
//! discarded, and their keys and values are overwritten.
//!
//! | module   | cares about                                                   |
//! |----------|---------------------------------------------------------------|
//! | `lookup` | drafts from an earlier occurrence of the same tokens          |
//! | `model`  | drafts by a smaller model                                     |
//! | `record` | how often drafts of each source are accepted                  |
//!
//! The prediction head of the model itself, where it has one, is a part of the runner.
//!
//! Drafts affect only the speed: their length is chosen to maximise the expected tokens per time, from the acceptance
//! of earlier drafts and the measured time of steps.

mod lookup;
mod model;
mod record;

use std::time::Duration;

use kvik_cache::{Followers, Token};

use self::lookup::Lookup;
use self::record::{HEAD_LIKELY, MODEL_LIKELY, Record};
use super::cost::Cost;
use crate::config::ROWS_AT_A_TIME;
use crate::stats::DraftSource;

pub use self::model::DraftSetup;
pub(super) use self::model::{DraftModel, WantedDraft};

/// Maximum number of draft tokens for one sequence.
pub(super) const DRAFT_MAX: usize = 15;
/// Maximum number of tokens that a draft model or a prediction head drafts for one sequence: each takes a pass.
const MODEL_MAX: usize = 8;
/// One that is not worth its time is tried again after this many tokens of a sequence.
const TRY_AGAIN: usize = 256;
/// Weight of a new outcome in the prior acceptance rate of a draft model or a prediction head.
const NEW: f64 = 0.02;
/// Minimum gain of drafts in tokens per time: at first their cost is a guess.
const GAIN_MIN: f64 = 1.05;

/// Candidate tokens for the continuation of a sequence.
#[derive(Debug, Clone, Default)]
pub(super) struct Draft {
    pub(super) tokens: Vec<Token>,
    pub(super) source: DraftSource,
    /// Probability that each token is accepted if the previous one was.
    pub(super) likely: f64,
}

/// Measurements about drafts that all sequences share.
#[derive(Debug)]
pub(super) struct Drafting {
    /// Step times of the target model.
    cost: Cost,
    model: Asked,
    head: Asked,
}

/// Measurements about a source that computes its drafts: the draft model, or the prediction head.
#[derive(Debug)]
struct Asked {
    /// Pass times, by number of sequences.
    passes: Cost,
    /// Probability that a token of it is accepted if the previous one was.
    likely: f64,
}

impl Default for Drafting {
    fn default() -> Drafting {
        let asked = |likely| Asked { passes: Cost::default(), likely };
        Drafting { cost: Cost::default(), model: asked(MODEL_LIKELY), head: asked(HEAD_LIKELY) }
    }
}

/// The draft state of one sequence.
#[derive(Debug, Default)]
pub(super) struct Drafter {
    lookup: Lookup,
    /// By source.
    records: [Record; DraftSource::ALL.len()],
}

impl Drafter {
    /// Compares the last offer of each source with the tokens that were sampled.
    pub(super) fn learn(&mut self, tokens: &[Token]) {
        for (&source, record) in DraftSource::ALL.iter().zip(&mut self.records) {
            record.learn(source, tokens);
        }
    }

    /// Looks up the last tokens among the earlier ones.
    pub(super) fn look_up(&mut self, tokens: &[Token], most: usize) {
        let found = self.lookup.find(tokens, most);
        self.offer(DraftSource::Lookup, found, tokens.len());
    }

    /// Records the draft that a source offers for a sequence of `len` tokens, if any.
    pub(super) fn offer(&mut self, source: DraftSource, found: Option<Followers>, len: usize) {
        self.records[source as usize].note(found, len);
    }

    /// Acceptance probability of the tokens of a source that computes its drafts; the average over other sequences until
    /// one of this sequence was compared.
    pub(super) fn likely_of(&mut self, source: DraftSource, drafting: &Drafting) -> f64 {
        let record = &mut self.records[source as usize];
        record.expect(drafting.asked(source).likely);
        record.likely(source, 0)
    }

    /// The offer with the highest expected number of accepted tokens.
    pub(super) fn best(&self) -> Draft {
        let drafts = DraftSource::ALL.iter().zip(&self.records).filter_map(|(&source, record)| {
            let (tokens, likely) = record.last(source)?;
            Some(Draft { tokens: tokens.to_vec(), source, likely })
        });
        drafts.max_by(|a, b| a.expected().total_cmp(&b.expected())).unwrap_or_default()
    }
}

impl Draft {
    /// Expected number of accepted tokens.
    pub(super) fn expected(&self) -> f64 {
        expected(self.likely, self.tokens.len())
    }
}

/// Expected number of accepted tokens of a draft of `len` tokens that are accepted with probability `likely` each.
pub(super) fn expected(likely: f64, len: usize) -> f64 {
    (1..=len as i32).map(|position| likely.powi(position)).sum()
}

impl Drafting {
    /// Records the time of a step that decoded.
    pub(super) fn note(&mut self, rows: usize, elapsed: Duration) {
        self.cost.note(rows, elapsed);
    }

    fn asked(&self, source: DraftSource) -> &Asked {
        if source == DraftSource::Head { &self.head } else { &self.model }
    }

    fn asked_mut(&mut self, source: DraftSource) -> &mut Asked {
        if source == DraftSource::Head { &mut self.head } else { &mut self.model }
    }

    /// Records the time of a pass of a source that computes its drafts.
    pub(super) fn note_pass(&mut self, source: DraftSource, sequences: usize, elapsed: Duration) {
        self.asked_mut(source).passes.note(sequences, elapsed);
    }

    /// Records that `drawn` of `drafted` tokens of such a source were accepted.
    pub(super) fn note_drawn(&mut self, source: DraftSource, drafted: usize, drawn: usize) {
        let likely = &mut self.asked_mut(source).likely;
        for position in 0..(drawn + 1).min(drafted) {
            *likely += NEW * (f64::from(u8::from(position < drawn)) - *likely);
        }
    }

    /// Number of tokens to request from such a source, for one of `sequences` in a step of `rows` rows; the sequence has
    /// `len` tokens and an acceptance probability of `likely`. Maximises the tokens per time of both.
    pub(super) fn ask(
        &self,
        source: DraftSource,
        (rows, sequences): (usize, usize),
        len: usize,
        likely: f64,
    ) -> usize {
        let passes = &self.asked(source).passes;
        if !passes.is_measured() {
            return 1;
        }
        let rate = |count: usize| {
            let drawn = rows as f64 + sequences as f64 * expected(likely, count);
            drawn / (self.cost.of(rows + sequences * count) + count as f64 * passes.of(sequences))
        };
        let plain = GAIN_MIN * rate(0);
        let best = (1..=MODEL_MAX).max_by(|&a, &b| rate(a).total_cmp(&rate(b)));
        let best = best.filter(|&count| rate(count) > plain);
        best.unwrap_or_else(|| usize::from(len.is_multiple_of(TRY_AGAIN)))
    }

    /// Number of tokens of each draft to compute in addition to `rows` other rows, `drafts_max` in total. `decoding` of
    /// the rows are the next tokens of sequences, whose number drafts increase; the others are of prompts.
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
        // A token is never more likely than its predecessor, and the stable sort keeps equal ones in order.
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

    /// The lengths chosen for drafts given as (number of tokens, acceptance probability).
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
    fn a_source_that_computes_is_asked_for_what_makes_most_of_the_time_of_both() {
        for (source, other) in
            [(DraftSource::Model, DraftSource::Head), (DraftSource::Head, DraftSource::Model)]
        {
            let mut drafting = Drafting::default();
            let ask = |drafting: &Drafting, len, likely: f64| drafting.ask(source, (1, 1), len, likely);
            assert_eq!(ask(&drafting, 7, 0.9), 1, "to see how long it takes");
            drafting.note(1, Duration::from_millis(40));
            drafting.note(8, Duration::from_millis(50));
            drafting.note_pass(source, 1, Duration::from_millis(4));
            assert_eq!(ask(&drafting, 7, 0.95), 7, "two groups of rows");
            assert!((2..=5).contains(&ask(&drafting, 7, 0.7)), "{}", ask(&drafting, 7, 0.7));
            assert_eq!(ask(&drafting, 7, 0.05), 0);
            assert_eq!(ask(&drafting, 2 * TRY_AGAIN, 0.05), 1, "things may have changed");
            let mut slow = Drafting::default();
            slow.note(1, Duration::from_millis(40));
            slow.note_pass(source, 1, Duration::from_millis(40));
            assert_eq!(ask(&slow, 7, 0.9), 0, "as slow as what it drafts for");
            (0..200).for_each(|_| drafting.note_drawn(source, 4, 0));
            let likely = |drafting: &Drafting| drafting.asked(source).likely;
            assert!(likely(&drafting) < 0.05, "{}", likely(&drafting));
            (0..200).for_each(|_| drafting.note_drawn(source, 4, 4));
            assert!(likely(&drafting) > 0.9, "{}", likely(&drafting));
            assert_eq!(drafting.asked(other).likely, 0.5, "and nothing is learnt of the other");
        }
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
        // Both are compared with the sampled tokens, including the one that was not used.
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
