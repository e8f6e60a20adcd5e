//! Drafts of a step: what each sequence offers, how much of it is computed, and what of that was drawn.

use kvik_cache::Token;

use super::Scheduler;
use super::draft::DRAFT_MAX;
use super::plan::Span;
use super::sequence::Sequence;

impl Scheduler {
    /// What sequences may go on with, `[running]`, when this step decodes only. Blocks for it are there.
    pub(super) fn draft(&mut self) -> Vec<Vec<Token>> {
        let mut drafts = vec![Vec::new(); self.running.len()];
        let decodes = self.running.iter().all(|sequence| sequence.due() <= 1);
        if self.config.draft_rows_max == 0 || !decodes {
            return drafts;
        }
        let rows = self.running.iter().filter(|sequence| sequence.due() == 1).count();
        let mut likely = vec![0.0; drafts.len()];
        for (index, sequence) in self.running.iter_mut().enumerate() {
            let most = sequence.draft_max().min(DRAFT_MAX);
            if most == 0 {
                continue;
            }
            if let Some((found, how)) = sequence.drafter.find(&sequence.tokens, most) {
                (drafts[index], likely[index]) = (found.to_vec(), how);
            }
        }
        let offers: Vec<(usize, f64)> = drafts.iter().map(Vec::len).zip(likely).collect();
        let lengths = self.drafting.lengths(rows, &offers, self.config.draft_rows_max);
        for (index, (draft, len)) in drafts.iter_mut().zip(lengths).enumerate() {
            let Sequence { id, ref tokens, .. } = self.running[index];
            let has_room = len > 0 && self.ram.cache.reserve(id, tokens.len() + len).is_ok();
            draft.truncate(if has_room { len } else { 0 });
        }
        drafts
    }

    /// Goes on through the draft of `span` as long as its tokens are those that are drawn; `rows` are their logits.
    pub(super) fn verify<'a>(&mut self, span: &Span, rows: &mut impl Iterator<Item = &'a [f32]>) {
        self.results.drafted(self.running[span.index].job, span.draft.len());
        for &token in &span.draft {
            let sequence = &self.running[span.index];
            let is_next = sequence.missing() == 1 && sequence.tokens.last() == Some(&token);
            if sequence.ended.is_some() || !is_next {
                break;
            }
            let Some(row) = rows.next() else { break };
            self.results.accepted(sequence.job);
            self.store(span.index, 1);
            self.emit(span.index, row);
        }
    }
}
