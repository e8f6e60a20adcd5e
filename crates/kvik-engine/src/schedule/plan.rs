//! Chooses the rows that a step computes.
//!
//! Every sequence with a single token left gets its row: that is decode. The rest of the batch is prefill, bounded so
//! that a step [stays short](super::mixed). The shortest prompts go first: that order minimises the mean time to first
//! token (L. Schrage 1968). To bound the wait of long prompts, the oldest prefill of the tenant whose turn it is gets
//! at least an eighth of the rows, and half as soon as others have got as many rows as it still needs, or if there are
//! other tenants.
//!
//! Background sequences are treated separately: [`background`](super::background) decides their rows, so that they end
//! however long foreground requests keep arriving. A step of the background alone is short, because a foreground request may
//! arrive while it is computed.

use std::ops::Range;

use kvik_cache::{Cache, SeqId, StateId};
use kvik_model::batch::{
    Batch, Followed, HEAD_PROMPT_ROWS, LayerTails, Output, Row, SequenceKv, SequenceState,
};

use super::draft::Draft;
use super::running::Running;
use super::sequence::Sequence;
use super::turns::{AllTurns, Turns};
use crate::retain::{Ragged, TailViews};

/// The rows of one step.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) rows: Vec<Row>,
    /// The sequences of the rows, in the order of the rows and of the batch's sequences.
    pub(super) spans: Vec<Span>,
}

/// The rows of one sequence.
#[derive(Debug)]
pub(super) struct Span {
    /// Index into the running sequences.
    pub(super) index: usize,
    pub(super) rows: usize,
    /// Rows whose logits are needed: the last one, or all with a draft.
    pub(super) logits: usize,
    /// Rows of which only the most likely token is needed.
    pub(super) likeliest: usize,
    /// Draft tokens after those of the sequence.
    pub(super) draft: Draft,
    /// Rows whose hidden states are needed.
    pub(super) hidden: usize,
    /// The position from which on the prediction head needs them, if it follows the sequence.
    pub(super) followed_from: Option<u32>,
    /// Whether the rows are tokens of the sequence, or repeat its prompt after them.
    pub(super) kind: Kind,
}

/// The purpose of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The next tokens of the sequence.
    Tokens,
    /// The prompt again, to be observed.
    Repeat,
}

impl Plan {
    /// Plans `rows` of each running sequence followed by its draft. `chooses` says whether the runner
    /// [chooses](kvik_model::batch::Runner::chooses) the most likely token itself. The prediction head follows the
    /// oldest sequences, `followed_max` at most.
    pub(super) fn new(
        running: &Running,
        rows: &[usize],
        drafts: Vec<Draft>,
        chooses: bool,
        followed_max: usize,
    ) -> Plan {
        let followed: Vec<SeqId> = running.followed(followed_max).map(|sequence| sequence.id).collect();
        let mut plan = Plan::default();
        for (index, (&rows, draft)) in rows.iter().zip(drafts).enumerate() {
            let sequence = &running[index];
            let is_followed = followed.contains(&sequence.id);
            if rows > 0 {
                plan.add((index, sequence), rows, chooses);
                plan.add_draft(draft);
                plan.follow(sequence, is_followed);
            }
        }
        plan
    }

    /// Notes whether the prediction head follows the last sequence.
    fn follow(&mut self, sequence: &Sequence, is_followed: bool) {
        let Some(span) = self.spans.last_mut() else { return };
        let from = sequence.tokens.len().saturating_sub(1 + HEAD_PROMPT_ROWS) as u32;
        span.followed_from = is_followed.then_some(from);
    }

    /// Adds draft rows after the last row of the last sequence.
    fn add_draft(&mut self, draft: Draft) {
        let (Some(last), Some(span)) = (self.rows.last().copied(), self.spans.last_mut()) else { return };
        self.rows.extend((1..).zip(&draft.tokens).map(|(after, &token)| Row {
            token,
            position: last.position + after,
            cache_position: last.cache_position + after,
            ..last
        }));
        span.rows += draft.tokens.len();
        match last.output {
            Output::Likeliest => span.likeliest += draft.tokens.len(),
            _ => span.logits += draft.tokens.len(),
        }
        span.draft = draft;
    }

    /// Adds the next `rows` rows of the sequence at `index`.
    fn add(&mut self, (index, sequence): (usize, &Sequence), rows: usize, chooses: bool) {
        let repeat = sequence.forgetting.as_ref().and_then(|forgetting| forgetting.repeat());
        let (tokens, first, kind) = match repeat {
            Some(tokens) => (&tokens[..rows], sequence.stored + sequence.repeated(), Kind::Repeat),
            None => (&sequence.tokens[sequence.stored..][..rows], sequence.stored, Kind::Tokens),
        };
        let chooses = chooses && sequence.answer.takes_the_likeliest();
        let output = |position| match sequence.output(position) {
            _ if kind == Kind::Repeat => Output::None,
            Output::Logits if chooses => Output::Likeliest,
            output => output,
        };
        let index_in_batch = self.spans.len() as u32;
        let before = self.rows.len();
        self.rows.extend(tokens.iter().zip(first..).map(|(&token, position)| Row {
            sequence: index_in_batch,
            token,
            position: position as u32,
            cache_position: position as u32,
            output: output(position),
        }));
        let count = |output| self.rows[before..].iter().filter(|row| row.output == output).count();
        let [logits, likeliest, hidden] = [Output::Logits, Output::Likeliest, Output::Hidden].map(count);
        let draft = Draft::default();
        self.spans.push(Span { index, rows, logits, likeliest, draft, hidden, followed_from: None, kind });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Calls `compute` with the batch of these rows.
    pub(super) fn with_batch<T>(
        &self,
        running: &Running,
        cache: &Cache,
        compute: impl FnOnce(&Batch<'_>) -> T,
    ) -> T {
        let sequences = self.spans.iter().map(|span| &running[span.index]);
        let storage = sequences.clone().map(Sequence::storage);
        let views: Vec<Option<TailViews<'_>>> = storage.map(|storage| storage.map(Ragged::views)).collect();
        let tails: Vec<Vec<LayerTails<'_>>> =
            views.iter().map(|views| views.as_ref().map_or_else(Vec::new, TailViews::layers)).collect();
        let saves: Vec<Vec<(u32, StateId)>> =
            sequences.clone().map(|sequence| saves(cache, sequence)).collect();
        let tentative = self.spans.iter().map(|span| {
            let certain = running[span.index].stored + span.rows - span.draft.tokens.len();
            (!span.draft.tokens.is_empty()).then_some(certain as u32)
        });
        let sequences = self.spans.iter().zip(sequences).zip(&tails).zip(saves.iter().zip(tentative));
        let sequences: Vec<SequenceKv<'_>> = sequences
            .map(|(((span, sequence), tails), (saves, tentative))| SequenceKv {
                blocks: cache.table(sequence.id),
                tails,
                adapters: sequence.answer.request().adapters.as_ref(),
                state: cache.state(sequence.id).map(|live| SequenceState { live, saves, tentative }),
                followed: span.followed_from.map(|from| Followed { id: sequence.id, from }),
            })
            .collect();
        compute(&Batch { rows: &self.rows, sequences: &sequences })
    }

    /// The rows of each sequence, as a batch of their own.
    pub(super) fn apart(self) -> impl Iterator<Item = (Vec<Row>, Span)> {
        let mut rest = self.rows.into_iter();
        self.spans.into_iter().map(move |span| {
            let rows = rest.by_ref().take(span.rows).map(|row| Row { sequence: 0, ..row }).collect();
            (rows, span)
        })
    }

    /// Number of rows whose logits are needed.
    pub(super) fn logits(&self) -> usize {
        self.spans.iter().map(|span| span.logits).sum()
    }

    /// Adds to each running prefill the number of rows that other prefills get.
    pub(super) fn note_overtaken(&self, running: &mut Running) {
        let all = self.prefill_rows();
        if all == 0 {
            return;
        }
        let mut own = vec![0; running.len()];
        self.spans.iter().for_each(|span| own[span.index] = span.rows);
        for (sequence, own) in running.iter_mut().zip(own) {
            if sequence.in_prefill() {
                sequence.overtaken += all.saturating_sub(own);
            }
        }
    }

    /// Number of rows of prompts, or of tokens that preemptions lost.
    pub(super) fn prefill_rows(&self) -> usize {
        let own = self.spans.iter().map(|span| span.rows - span.draft.tokens.len());
        own.filter(|&rows| rows > 1).sum()
    }
}

/// The states to be saved in a step, by the number of positions that they cover.
fn saves(cache: &Cache, sequence: &Sequence) -> Vec<(u32, StateId)> {
    let saves = cache.saves(sequence.id).into_iter();
    saves.map(|(positions, state)| (positions as u32, state)).collect()
}

/// Maximum number of prompt rows of a step, depending on what else is in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budgets {
    /// If no sequence decodes.
    pub(super) alone: usize,
    /// If some sequence decodes.
    pub(super) mixed: usize,
    /// For the background, if no foreground sequence has rows to compute.
    pub(super) background: usize,
    /// For the background, if the foreground owes it this step.
    pub(super) owed: Option<usize>,
}

/// Divides the rows among the running sequences, without those of drafts. In a step with foreground rows, the
/// background gets [its rows](super::background) after theirs are known.
pub(super) fn divide_rows(running: &Running, turns: &AllTurns, budgets: Budgets) -> Vec<usize> {
    let missing: Vec<usize> = (0..running.len()).map(|index| running.due(index)).collect();
    if let Some(suspect) = running.iter().position(Sequence::is_suspect) {
        let mut rows = vec![0; missing.len()];
        rows[suspect] = missing[suspect].min(budgets.alone);
        return rows;
    }
    let foreground = running.foreground();
    let nobody_else = missing[..foreground].iter().all(|&missing| missing == 0);
    let background = if nobody_else { Some(budgets.background) } else { budgets.owed };
    if let Some(rows) = background {
        return share(&missing, foreground..missing.len(), rows, running, turns.of(true));
    }
    let somebody_decodes = running.iter().take(foreground).any(|sequence| !sequence.in_prefill());
    let budget = if somebody_decodes { budgets.mixed } else { budgets.alone };
    share(&missing, 0..foreground, budget, running, turns.of(false))
}

/// Rows of the running sequences `among`, `budget` of them for prefill; 0 for the others.
fn share(
    missing: &[usize],
    among: Range<usize>,
    mut budget: usize,
    running: &Running,
    turns: &Turns,
) -> Vec<usize> {
    let mut rows = vec![0; missing.len()];
    among.clone().for_each(|index| rows[index] = usize::from(missing[index] == 1));
    let mut prefills: Vec<usize> = among.filter(|&index| missing[index] > 1).collect();
    let (half, eighth) = (budget.div_ceil(2), budget.div_ceil(8));
    let mut give = |index: usize, most: usize| {
        let more = (missing[index] - rows[index]).min(most).min(budget);
        rows[index] += more;
        budget -= more;
    };
    let time = |index: usize| turns.time(running[index].tenant, 0);
    // Of those with the same time, as all of one tenant have, the oldest.
    if let Some(oldest) = prefills.iter().copied().min_by(|&a, &b| time(a).total_cmp(&time(b))) {
        let is_alone = prefills.iter().all(|&index| running[index].tenant == running[oldest].tenant);
        let is_patient = is_alone && running[oldest].overtaken < missing[oldest];
        give(oldest, if is_patient { eighth } else { half });
    }
    prefills.sort_by_key(|&index| missing[index]);
    prefills.into_iter().for_each(|index| give(index, usize::MAX));
    rows
}

#[cfg(test)]
mod tests {
    use kvik_cache::TenantId;
    use proptest::prelude::*;

    use super::*;
    use crate::config::{ROWS_AT_A_TIME, background_rows_max};
    use crate::schedule::background::BackgroundShare;
    use crate::schedule::job::JobId;

    /// Rows of sequences with `missing` tokens, each of a tenant of its own, with budgets of 16 and of 8.
    fn rows(missing: &[usize]) -> Vec<usize> {
        rows_beside(missing, &[])
    }

    /// As `rows`, with background sequences, whose rows come after those of the others.
    fn rows_beside(foreground: &[usize], background: &[usize]) -> Vec<usize> {
        let (mut running, mut turns) = (Running::default(), AllTurns::default());
        let missing: Vec<usize> = foreground.iter().chain(background).copied().collect();
        for (job, &missing) in (0..).zip(&missing) {
            let is_background = job as usize >= foreground.len();
            let sequence = Sequence::fake_in(is_background, TenantId(job), vec![1; 40]);
            running.insert(Sequence {
                job: JobId(job.into()),
                stored: 40 - missing,
                prompt_len: 39,
                ..sequence
            });
            turns.of_mut(is_background).charge(TenantId(job), 100 - job as usize);
        }
        let budgets = Budgets { alone: 16, mixed: 8, background: 8, owed: None };
        let mut divided = divide_rows(&running, &turns, budgets);
        BackgroundShare::default().share(&running, &mut divided, 0);
        let plan = Plan::new(&running, &divided, vec![Draft::default(); running.len()], false, 0);
        assert_eq!(plan.rows.len(), plan.spans.iter().map(|span| span.rows).sum::<usize>());
        let mut rows = vec![0; missing.len()];
        plan.spans.iter().for_each(|span| rows[span.index] = span.rows);
        rows
    }

    #[test]
    fn every_stream_gets_its_row_and_prefill_shares_the_rest() {
        let check = |missing: &[usize], expect: &[usize]| assert_eq!(rows(missing), expect, "{missing:?}");
        check(&[], &[]);
        check(&[1, 1], &[1, 1]);
        check(&[30], &[16]);
        check(&[1, 30], &[1, 8]);
        // The last tenant has the smallest virtual time: it gets half, and the shortest get the rest.
        check(&[30, 30], &[8, 8]);
        check(&[5, 30, 30], &[5, 3, 8]);
        check(&[1, 5, 30, 30], &[1, 4, 0, 4]);
        check(&[30, 5, 30, 3], &[8, 5, 0, 3]);
    }

    #[test]
    fn of_one_tenant_the_shortest_goes_first_until_the_oldest_was_overtaken() {
        let mut running = Running::default();
        for (job, missing) in [(0, 40), (1, 30), (2, 9)] {
            let sequence = Sequence::fake_in(false, TenantId(7), vec![1; 40]);
            running.insert(Sequence { job: JobId(job), stored: 40 - missing, prompt_len: 40, ..sequence });
        }
        let rows = |running: &Running| share(&[40, 30, 9], 0..3, 16, running, &Turns::default());
        assert_eq!(rows(&running), [2, 5, 9]);
        let mut overtaken = Running::default();
        for (index, sequence) in running.iter().enumerate() {
            let fake = Sequence::fake_in(false, TenantId(7), vec![1; 40]);
            let Sequence { job, stored, prompt_len, .. } = *sequence;
            overtaken.insert(Sequence {
                job,
                stored,
                prompt_len,
                overtaken: 40 * (1 - index.min(1)),
                ..fake
            });
        }
        assert_eq!(rows(&overtaken), [8, 0, 8]);
    }

    #[test]
    fn the_background_shares_a_short_step_only_when_nobody_else_is_due() {
        let check = |foreground: &[usize], background: &[usize], expect: &[usize]| {
            assert_eq!(rows_beside(foreground, background), expect, "{foreground:?} {background:?}");
        };
        check(&[], &[1, 30], &[1, 8]);
        check(&[], &[30, 30], &[4, 4]);
        check(&[0], &[30], &[0, 8]);
        check(&[1], &[30], &[1, 3]);
        check(&[1, 1, 1, 1], &[30], &[1, 1, 1, 1, 4]);
        check(&[30], &[0, 3, 7], &[16, 0, 3, 1]);
        check(&[5, 30, 30], &[1], &[5, 3, 8, 1]);
    }

    proptest! {
        /// The foreground gets the rows that it would get without the background, which gets the rows that fill a
        /// group.
        #[test]
        fn the_background_costs_others_no_row(
            foreground in prop::collection::vec(0..40_usize, 0..6),
            background in prop::collection::vec(0..40_usize, 0..4),
        ) {
            let rows_of_all = rows_beside(&foreground, &background);
            let (own, others) = rows_of_all.split_at(foreground.len());
            prop_assert_eq!(own, rows(&foreground));
            if foreground.iter().any(|&due| due > 0) {
                let (due, beside): (usize, usize) = (background.iter().sum(), others.iter().sum());
                let all = own.iter().sum::<usize>() + beside;
                prop_assert!(beside == due || all % ROWS_AT_A_TIME == 0, "{own:?} {others:?}");
                prop_assert!((due.min(1)..=background_rows_max(own.iter().sum())).contains(&beside));
            }
        }
    }
}
