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

use kvik_cache::{Followers, SeqId, Token};

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
/// One that is not worth its time is tried again after this many tokens that were not asked of it.
const TRY_AGAIN: usize = 256;
/// How far a trial brings the prior acceptance rate of such a source back to the one before anything was compared.
const FORGIVENESS: f64 = 0.25;
/// Drafts that are not worth their time are computed all the same after this many steps without any: only then is their
/// time measured again.
const STEPS_WITHOUT: usize = 128;
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
    /// Steps since the last one with drafts.
    steps_without: usize,
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
    /// The same before anything was compared.
    likely_at_first: f64,
    /// Tokens since the last trial that were not worth its time.
    refused: usize,
    /// The sequence with which it is tried until the time of a pass is known.
    tried_with: Option<SeqId>,
}

impl Default for Drafting {
    fn default() -> Drafting {
        let (model, head) = (Asked::new(MODEL_LIKELY), Asked::new(HEAD_LIKELY));
        Drafting { cost: Cost::default(), steps_without: 0, model, head }
    }
}

impl Asked {
    fn new(likely: f64) -> Asked {
        Asked { passes: Cost::default(), likely, likely_at_first: likely, refused: 0, tried_with: None }
    }

    /// Whether it is asked for the next token of a sequence although it is not worth its time. A few slow passes or
    /// rejected tokens must not be the last ones. A trial takes several tokens of one sequence: before the first, the
    /// source reads what it was not asked about, which says nothing about its time.
    fn is_tried(&mut self, id: SeqId) -> bool {
        if self.tried_with == Some(id) {
            return true;
        }
        self.refused += 1;
        if self.refused < TRY_AGAIN {
            return false;
        }
        (self.refused, self.tried_with) = (0, Some(id));
        // New sequences expect what others had.
        self.likely += FORGIVENESS * (self.likely_at_first - self.likely).max(0.0);
        true
    }

    /// Records the time of a pass for these sequences. The one that ends a trial replaces the times before it, which were
    /// of other conditions.
    fn note_pass(&mut self, sequences: &[SeqId], elapsed: Duration) {
        if self.tried_with.take_if(|id| sequences.contains(id)).is_some() {
            self.passes = Cost::default();
        }
        self.passes.note(sequences.len(), elapsed);
    }
}

/// The draft state of one sequence.
#[derive(Debug, Default)]
pub(super) struct Drafter {
    lookup: Lookup,
    /// By source.
    records: [Record; DraftSource::ALL.len()],
    /// When the prediction head last drafted: the sequence's id, which changes with each admission, and its length.
    head_read: Option<(SeqId, usize)>,
}

impl Drafter {
    /// For the first choice of a request with a prompt of so many tokens.
    pub(super) fn of_prompt(len: usize) -> Drafter {
        Drafter { lookup: Lookup::of_prompt(len), ..Drafter::default() }
    }

    /// For another choice after the same prompt, which is indexed once for all of them.
    pub(super) fn sibling(&self) -> Drafter {
        Drafter { lookup: self.lookup.sibling(), ..Drafter::default() }
    }

    /// Records that the prediction head has drafted for the sequence, which has `len` tokens. Returns whether it only went
    /// on from the draft before: otherwise it also had to read a prompt, or what waited while it was not asked.
    pub(super) fn head_goes_on(&mut self, id: SeqId, len: usize) -> bool {
        let before = self.head_read.replace((id, len));
        before.is_some_and(|(same, before)| same == id && len - before <= MODEL_MAX + 1)
    }

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

    /// Records the time of a pass, for these sequences, of a source that computes its drafts.
    pub(super) fn note_pass(&mut self, source: DraftSource, sequences: &[SeqId], elapsed: Duration) {
        self.asked_mut(source).note_pass(sequences, elapsed);
    }

    /// Records that `drawn` of `drafted` tokens of such a source were accepted.
    pub(super) fn note_drawn(&mut self, source: DraftSource, drafted: usize, drawn: usize) {
        let likely = &mut self.asked_mut(source).likely;
        for position in 0..(drawn + 1).min(drafted) {
            *likely += NEW * (f64::from(u8::from(position < drawn)) - *likely);
        }
    }

    /// Number of tokens to request from such a source, for the sequence `id`, one of `sequences` in a step of `rows` rows,
    /// with an acceptance probability of `likely`. Maximises the tokens per time of both.
    pub(super) fn ask(
        &mut self,
        source: DraftSource,
        (rows, sequences): (usize, usize),
        id: SeqId,
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
        best.unwrap_or_else(|| usize::from(self.asked_mut(source).is_tried(id)))
    }

    /// Number of tokens of each draft to compute in addition to `rows` other rows, `drafts_max` in total. `decoding` of
    /// the rows are the next tokens of sequences, whose number drafts increase; the others are of prompts.
    pub(super) fn lengths(
        &mut self,
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
        let count = self.worth_computing((rows, decoding), &tokens);
        let mut lengths = vec![0; drafts.len()];
        tokens[..count].iter().for_each(|&(_, index)| lengths[index] += 1);
        lengths
    }

    /// Number of draft `tokens` to compute, each with its probability and the most likely first.
    fn worth_computing(&mut self, rows: (usize, usize), tokens: &[(f64, usize)]) -> usize {
        let mut count = most_worth(&self.cost, GAIN_MIN, rows, tokens);
        self.steps_without = if count > 0 { 0 } else { self.steps_without + 1 };
        // A few slow steps must not be the last ones with drafts.
        let is_due = self.steps_without >= STEPS_WITHOUT;
        if is_due && most_worth(&Cost::default(), GAIN_MIN, rows, tokens) > 0 {
            count = most_worth(&self.cost, 0.0, rows, tokens);
            self.steps_without = 0;
        }
        count
    }
}

/// The number of draft `tokens` with the most tokens per time in addition to `rows` other rows, of which so many are
/// `decoding`; 0 if none gains `gain_min`.
fn most_worth(
    cost: &Cost,
    gain_min: f64,
    (rows, decoding): (usize, usize),
    tokens: &[(f64, usize)],
) -> usize {
    let plain = decoding as f64 / cost.of(rows);
    let (mut best, mut best_count, mut expected) = (plain * gain_min, 0, decoding as f64);
    for (count, (likely, _)) in (1..).zip(tokens) {
        expected += likely;
        let fills = (rows + count).is_multiple_of(ROWS_AT_A_TIME) || count == tokens.len();
        let rate = expected / cost.of(rows + count);
        if fills && rate > best {
            (best, best_count) = (rate, count);
        }
    }
    best_count
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lengths chosen for drafts given as (number of tokens, acceptance probability).
    fn lengths(
        drafting: &mut Drafting,
        rows: usize,
        drafts: &[(usize, f64)],
        drafts_max: usize,
    ) -> Vec<usize> {
        let draft = |&(len, likely)| Draft { tokens: vec![7; len], likely, ..Draft::default() };
        drafting.lengths(rows, rows, &drafts.iter().map(draft).collect::<Vec<_>>(), drafts_max)
    }

    #[test]
    fn drafts_fill_groups_of_rows_where_they_are_worth_it() {
        let mut drafting = Drafting::default();
        assert_eq!(lengths(&mut drafting, 1, &[(15, 0.95)], 32), [15]);
        assert_eq!(lengths(&mut drafting, 1, &[(15, 0.3)], 32), [3]);
        assert_eq!(lengths(&mut drafting, 1, &[(15, 0.1)], 32), [0]);
        assert_eq!(lengths(&mut drafting, 1, &[(2, 0.9)], 32), [2]);
        assert_eq!(lengths(&mut drafting, 1, &[(15, 0.95)], 5), [5]);
        assert_eq!(lengths(&mut drafting, 4, &[(0, 0.0), (15, 0.9), (15, 0.2), (0, 0.0)], 4), [0, 4, 0, 0]);
        assert!(lengths(&mut drafting, 16, &[(15, 0.2); 16], 32).iter().all(|&len| len == 0));
        let mut slow = Drafting::default();
        slow.note(1, Duration::from_millis(10));
        slow.note(4, Duration::from_millis(40));
        slow.note(16, Duration::from_millis(160));
        assert_eq!(lengths(&mut slow, 1, &[(15, 0.9)], 32), [0], "rows that cost as much as steps");
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

    /// Where steps with drafts were slow: which of the next steps have drafts of such a probability, if these steps
    /// take `millis` now.
    fn steps_with_drafts(likely: f64, millis: u64) -> Vec<usize> {
        let mut drafting = Drafting::default();
        drafting.note(1, Duration::from_millis(10));
        drafting.note(4, Duration::from_millis(60));
        let has_drafts = |_: &usize| {
            let len = lengths(&mut drafting, 1, &[(15, likely)], 32)[0];
            drafting.note(1 + len, Duration::from_millis(if len > 0 { millis } else { 10 }));
            len > 0
        };
        (1..=10 * STEPS_WITHOUT).filter(has_drafts).collect()
    }

    #[test]
    fn what_was_slow_is_tried_again_and_believed_when_it_no_longer_is() {
        let slow: Vec<usize> = (1..=10).map(|time| time * STEPS_WITHOUT).collect();
        assert_eq!(steps_with_drafts(0.95, 60), slow);
        let fast = steps_with_drafts(0.95, 12);
        assert!(fast.len() > 5 * STEPS_WITHOUT && fast[..2] == slow[..2], "{fast:?}");
        assert!(steps_with_drafts(0.1, 12).is_empty(), "not worth it however fast");
    }

    /// The first draft reads the prompt, and one after a pause what waited meanwhile.
    #[test]
    fn the_time_of_a_head_is_that_of_its_passes_alone() {
        let (mut drafter, mut drafting) = (Drafter::default(), Drafting::default());
        let drafts =
            [(1, 40, 90), (1, 41, 4), (1, 50, 4), (1, 51, 4), (1, 307, 90), (1, 308, 4), (2, 309, 90)];
        for (id, len, millis) in drafts {
            if drafter.head_goes_on(SeqId(id), len) {
                drafting.note_pass(DraftSource::Head, &[SeqId(id)], Duration::from_millis(millis));
            }
        }
        let measured = drafting.asked(DraftSource::Head).passes.measured(1);
        assert!((measured.unwrap() - 0.004).abs() < 1e-9, "{measured:?}");
    }

    /// For how many of 2,000 tokens a head is asked whose passes take `millis` after a slow one, as when another
    /// program takes the processor for a moment. It reads what it was not asked about before it goes on.
    fn asked_after_a_slow_pass(millis: u64) -> usize {
        let (mut drafter, mut drafting, id) = (Drafter::default(), Drafting::default(), SeqId(1));
        drafting.note(1, Duration::from_millis(40));
        drafting.note(2, Duration::from_millis(45));
        for millis in [4, 200] {
            drafting.note_pass(DraftSource::Head, &[id], Duration::from_millis(millis));
        }
        let is_asked = |len: &usize| {
            let is_asked = drafting.ask(DraftSource::Head, (1, 1), id, 0.7) > 0;
            if is_asked && drafter.head_goes_on(id, *len) {
                drafting.note_pass(DraftSource::Head, &[id], Duration::from_millis(millis));
            }
            is_asked
        };
        (40..2040).filter(is_asked).count()
    }

    #[test]
    fn a_source_that_was_slow_once_is_tried_again_and_believed_when_it_no_longer_is() {
        let (fast, slow) = (asked_after_a_slow_pass(4), asked_after_a_slow_pass(40));
        assert_eq!(fast, 2000 - (TRY_AGAIN - 1));
        assert!(slow <= 2 * 2000 / TRY_AGAIN, "two passes at a time: {slow}");
    }

    /// It goes over to another one if no pass is timed: the first may have ended.
    #[test]
    fn a_trial_is_of_one_sequence_and_brings_back_some_of_what_was_expected() {
        let mut drafting = Drafting::default();
        drafting.note(1, Duration::from_millis(40));
        drafting.note_pass(DraftSource::Model, &[SeqId(1)], Duration::from_millis(40));
        (0..100).for_each(|_| drafting.note_drawn(DraftSource::Model, 1, 0));
        let before = drafting.asked(DraftSource::Model).likely;
        let mut ask = |id| drafting.ask(DraftSource::Model, (2, 2), SeqId(id), before);
        let turns = (0..3 * TRY_AGAIN as u64).map(|turn| turn % 2);
        let tried: Vec<u64> = turns.filter(|&id| ask(id) > 0).collect();
        assert_eq!(tried, [vec![1; TRY_AGAIN], vec![0]].concat());
        let after = drafting.asked(DraftSource::Model).likely;
        assert!(before < 0.1 && after > 0.2 && after < MODEL_LIKELY, "{before} and then {after}");
    }

    /// What waits for one of them is read beside the others, and their passes say nothing of it.
    #[test]
    fn a_trial_goes_on_while_others_draft() {
        let mut drafting = Drafting::default();
        drafting.note(1, Duration::from_millis(40));
        drafting.note_pass(DraftSource::Model, &[SeqId(1)], Duration::from_millis(4));
        let mut asked = 0;
        for _ in 0..2 * TRY_AGAIN {
            asked += drafting.ask(DraftSource::Model, (2, 2), SeqId(2), 0.05);
            drafting.note_pass(DraftSource::Model, &[SeqId(1)], Duration::from_millis(4));
        }
        assert_eq!(asked, TRY_AGAIN + 1);
    }

    #[test]
    fn a_source_that_computes_is_asked_for_what_makes_most_of_the_time_of_both() {
        for (source, other) in
            [(DraftSource::Model, DraftSource::Head), (DraftSource::Head, DraftSource::Model)]
        {
            let mut drafting = Drafting::default();
            let ask = |drafting: &mut Drafting, likely| drafting.ask(source, (1, 1), SeqId(1), likely);
            assert_eq!(ask(&mut drafting, 0.9), 1, "to see how long it takes");
            drafting.note(1, Duration::from_millis(40));
            drafting.note(8, Duration::from_millis(50));
            drafting.note_pass(source, &[SeqId(1)], Duration::from_millis(4));
            assert_eq!(ask(&mut drafting, 0.95), 7, "two groups of rows");
            let some = ask(&mut drafting, 0.7);
            assert!((2..=5).contains(&some), "{some}");
            let asked: Vec<usize> = (0..TRY_AGAIN).map(|_| ask(&mut drafting, 0.05)).collect();
            assert_eq!((asked.iter().sum::<usize>(), asked.last()), (1, Some(&1)), "things may have changed");
            let mut slow = Drafting::default();
            slow.note(1, Duration::from_millis(40));
            slow.note_pass(source, &[SeqId(1)], Duration::from_millis(40));
            assert_eq!(ask(&mut slow, 0.9), 0, "as slow as what it drafts for");
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
