//! Hands out what a step computed: blocks to the cache, tokens to the answers, text to clients.

use kvik_cache::{BLOCK_POSITIONS, PinLimit};

use super::Scheduler;
use super::plan::Span;
use super::sequence::Sharing;
use crate::api::{FinishReason, RequestError};

impl Scheduler {
    /// Publishes the results of `spans`; `logits` has shape `[spans with logits, vocab]`.
    pub(super) fn publish(&mut self, spans: &[Span], logits: &[f32]) {
        self.results.counters.steps += 1;
        let wanted = spans.iter().filter(|span| span.logits).count();
        let mut rows = logits.chunks_exact((logits.len() / wanted.max(1)).max(1));
        for span in spans {
            self.store(span);
            let pinned = self.pin_prompt(span.index);
            if span.logits {
                let row = rows.next().expect("the runner returns every row of logits it was asked for");
                if pinned.is_ok() {
                    self.emit(span.index, row);
                }
            }
        }
        self.end_what_is_stored();
    }

    /// Samples the next token of a sequence and emits it. With the prompt's logits, all choices begin.
    fn emit(&mut self, index: usize, logits: &[f32]) {
        let now = self.now();
        let sequence = &mut self.running[index];
        let (id, job) = (sequence.id, sequence.job);
        match self.results.emit(sequence, logits, now) {
            Ok(siblings) => siblings.into_iter().for_each(|child| self.running.fork(id, child)),
            Err(error) => self.results.fail_later(job, error),
        }
    }

    /// Notes that the rows of `span` are stored, and publishes the blocks they complete.
    fn store(&mut self, span: &Span) {
        let sequence = &mut self.running[span.index];
        let (from, to) = (sequence.stored, sequence.stored + span.rows);
        let new = to.min(sequence.prompt_len).saturating_sub(sequence.furthest.max(from));
        let again = to.min(sequence.furthest).saturating_sub(from);
        let job = self.results.computed(sequence.job, new, again);
        if new > 0 {
            job.prefill_progress(to.min(sequence.prompt_len), sequence.prompt_len);
        }
        self.turns.charge(sequence.tenant, span.rows);
        sequence.stored = to;
        sequence.furthest = sequence.furthest.max(to);
        let completes_block = from / BLOCK_POSITIONS < to / BLOCK_POSITIONS;
        if completes_block && matches!(sequence.sharing, Sharing::Namespace(_)) {
            self.cache.publish(sequence.id, sequence.stored_tokens());
        }
    }

    /// Pins the prompt of a sequence that asks for it, once it is stored and before the answer begins; else
    /// its request fails. What is pinned then is the prompt alone, which its client can name again.
    fn pin_prompt(&mut self, index: usize) -> Result<(), PinLimit> {
        let sequence = &mut self.running[index];
        let Sharing::Namespace(namespace) = sequence.sharing else { return Ok(()) };
        if !sequence.retain.pin || sequence.stored < sequence.prompt_len {
            return Ok(());
        }
        sequence.retain.pin = false;
        let pinned = self.cache.pin(namespace, sequence.prompt());
        if let Err(limit) = pinned {
            self.results.fail_later(sequence.job, RequestError::PinLimit(limit));
        }
        pinned.map(|_| ())
    }

    /// Ends requests that want no tokens and have their prompt stored.
    pub(super) fn end_what_is_stored(&mut self) {
        let stored = (0..self.running.len()).filter(|&index| self.running[index].missing() == 0);
        for index in stored.collect::<Vec<usize>>() {
            let pinned = self.pin_prompt(index);
            let sequence = &mut self.running[index];
            if pinned.is_err() {
                sequence.ended = Some(FinishReason::Length);
                continue;
            }
            let job = self.results.job(sequence.job);
            if sequence.ended.is_none() && !sequence.answer.is_wanted() {
                job.prefill_done((self.clock)());
                (0..job.choices).for_each(|choice| job.finished(choice, FinishReason::Length));
                sequence.ended = Some(FinishReason::Length);
            }
        }
    }
}
