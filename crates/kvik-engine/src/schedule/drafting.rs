//! Drafts of a step: what each sequence is offered, how much of it is computed, and what of that was drawn.

use kvik_cache::Token;

use super::Scheduler;
use super::draft::{DRAFT_MAX, Draft, Found};
use super::plan::Span;
use super::sequence::Sequence;
use crate::stats::DraftSource;

impl Scheduler {
    /// What sequences may go on with, `[running]`, when this step decodes only. Blocks for it are there.
    pub(super) fn draft(&mut self) -> Vec<Draft> {
        let mut drafts = vec![Draft::default(); self.running.len()];
        let decodes = self.running.iter().all(|sequence| sequence.due() <= 1);
        if self.config.draft_rows_max == 0 || !decodes {
            return drafts;
        }
        let rows = self.running.iter().filter(|sequence| sequence.due() == 1).count();
        for (index, draft) in drafts.iter_mut().enumerate() {
            let most = self.running[index].draft_max().min(DRAFT_MAX);
            if most > 0 {
                *draft = self.find_draft(index, most);
            }
        }
        let lengths = self.drafting.lengths(rows, &drafts, self.config.draft_rows_max);
        for (index, (draft, len)) in drafts.iter_mut().zip(lengths).enumerate() {
            let Sequence { id, ref tokens, .. } = self.running[index];
            let has_room = len > 0 && self.ram.cache.reserve(id, tokens.len() + len).is_ok();
            draft.tokens.truncate(if has_room { len } else { 0 });
        }
        drafts
    }

    /// What promises most of all that may follow a sequence, at most `most` tokens.
    fn find_draft(&mut self, index: usize, most: usize) -> Draft {
        let sequence = &mut self.running[index];
        let len = sequence.tokens.len();
        sequence.drafter.look_up(&sequence.tokens, most);
        if let Some(namespace) = sequence.publishes_in() {
            let followers = self.ram.cache.followers(namespace, &sequence.tokens, most);
            let found = followers.map(|found| Found { tokens: found.tokens, same: found.same });
            sequence.drafter.offer(DraftSource::Tree, found, len);
        }
        let forced = sequence.answer.forced(most).map(|tokens| Found { tokens, same: 0 });
        sequence.drafter.offer(DraftSource::Grammar, forced, len);
        sequence.drafter.best()
    }

    /// Goes on through the draft of `span` as long as its tokens are those that are drawn; `rows` are their logits.
    pub(super) fn verify<'a>(&mut self, span: &Span, rows: &mut impl Iterator<Item = &'a [f32]>) {
        self.results.drafted(self.running[span.index].job, &span.draft);
        for &token in &span.draft.tokens {
            if !self.is_drawn(span.index, token) {
                break;
            }
            let Some(row) = rows.next() else { break };
            self.results.accepted(self.running[span.index].job, span.draft.source);
            self.store(span.index, 1);
            self.emit(span.index, row);
        }
    }

    /// Whether a sequence goes on with this token, which was drawn last.
    fn is_drawn(&self, index: usize, token: Token) -> bool {
        let sequence = &self.running[index];
        sequence.ended.is_none() && sequence.missing() == 1 && sequence.tokens.last() == Some(&token)
    }
}
