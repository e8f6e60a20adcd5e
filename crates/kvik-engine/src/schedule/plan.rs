//! Which rows a step computes.
//!
//! Every sequence with a single token left gets its row: that is decode. The rest of the batch
//! is prefill, bounded so that a step stays short. The oldest prefill of the tenant whose turn it is
//! gets at least half, so a long prompt always moves; then the shortest go first, so a short
//! question does not wait behind a book.

use super::Scheduler;
use super::room::Room;
use crate::model::batch::{Batch, Row, Runner, SequenceKv};

/// The rows of one step.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) rows: Vec<Row>,
    /// Whose rows they are, in the order of the rows and of the batch's sequences.
    pub(super) spans: Vec<Span>,
}

/// The rows of one sequence.
#[derive(Debug)]
pub(super) struct Span {
    /// Index into the running sequences.
    pub(super) index: usize,
    pub(super) rows: usize,
    /// Whether the last row's logits are wanted.
    pub(super) logits: bool,
}

impl Plan {
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(super) fn batch<'a>(&'a self, sequences: &'a [SequenceKv<'a>]) -> Batch<'a> {
        Batch { rows: &self.rows, sequences }
    }
}

impl Scheduler {
    /// Settles who runs and chooses the rows of the next step.
    pub(super) fn plan(&mut self, runner: &mut dyn Runner) -> Plan {
        self.start_forks(runner);
        if self.make_room() == Room::Enough {
            self.admit(runner);
        }
        self.end_what_is_stored();
        self.choose_rows()
    }

    /// What the plan's sequences store.
    pub(super) fn stored(&self, plan: &Plan) -> Vec<SequenceKv<'_>> {
        let table = |span: &Span| self.cache.table(self.running[span.index].id);
        plan.spans.iter().map(|span| SequenceKv::in_blocks(table(span))).collect()
    }

    fn choose_rows(&self) -> Plan {
        let mut plan = Plan::default();
        for (index, rows) in self.divide_rows().into_iter().enumerate() {
            if rows == 0 {
                continue;
            }
            let sequence = &self.running[index];
            let end = sequence.stored + rows;
            let logits = end == sequence.tokens.len() && sequence.answer.is_wanted();
            plan.rows.extend((sequence.stored..end).map(|position| Row {
                sequence: plan.spans.len() as u32,
                token: sequence.tokens[position],
                position: position as u32,
                cache_position: position as u32,
                logits: logits && position + 1 == end,
            }));
            plan.spans.push(Span { index, rows, logits });
        }
        plan
    }

    /// Rows for each running sequence.
    fn divide_rows(&self) -> Vec<usize> {
        let missing: Vec<usize> = self.running.iter().map(|sequence| sequence.missing()).collect();
        let mut rows: Vec<usize> = missing.iter().map(|&missing| usize::from(missing == 1)).collect();
        let mut prefills: Vec<usize> = (0..missing.len()).filter(|&index| missing[index] > 1).collect();
        let somebody_decodes = self.running.iter().any(|sequence| !sequence.in_prefill());
        let mut budget = match somebody_decodes {
            true => self.config.prefill_rows_mixed_max,
            false => self.config.prefill_rows_max,
        };
        let half = budget.div_ceil(2);
        let mut give = |index: usize, most: usize| {
            let more = (missing[index] - rows[index]).min(most).min(budget);
            rows[index] += more;
            budget -= more;
        };
        let time = |index: usize| self.turns.time(self.running[index].tenant, 0);
        // Of those with the same time, as all of one tenant are, the oldest.
        if let Some(oldest) = prefills.iter().copied().min_by(|&a, &b| time(a).total_cmp(&time(b))) {
            give(oldest, half);
        }
        prefills.sort_by_key(|&index| missing[index]);
        prefills.into_iter().for_each(|index| give(index, usize::MAX));
        rows
    }
}
