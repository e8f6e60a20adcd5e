//! Hands out what a step computed: blocks to the cache, tokens to the answers, text to clients.

use std::time::Duration;

use kvik_cache::{BLOCK_POSITIONS, PinLimit};

use super::job::Job;
use super::plan::Span;
use super::sequence::{Sequence, Sharing};
use super::{Fork, Scheduler};
use crate::api::{FinishReason, RequestError};
use crate::panics::contain;
use crate::sampler::Scratch;
use crate::stats::Counters;
use crate::text::stream::Vocabulary;

/// What an answer needs to go on.
struct Desk<'a> {
    vocabulary: &'a Vocabulary,
    scratch: &'a mut Scratch,
    counters: &'a mut Counters,
    now: Duration,
}

impl Scheduler {
    /// Publishes the results of `spans`; `logits` has shape `[spans with logits, vocab]`.
    pub(super) fn publish(&mut self, spans: &[Span], logits: &[f32]) {
        self.counters.steps += 1;
        let wanted = spans.iter().filter(|span| span.logits).count();
        let mut rows = logits.chunks_exact((logits.len() / wanted.max(1)).max(1));
        for span in spans {
            self.store(span);
            let pinned = self.pin_prompt(span.index);
            if span.logits {
                let row = rows.next().expect("the runner returns every row of logits it was asked for");
                if pinned.is_ok() {
                    self.speak_or_fail(span.index, row);
                }
            }
        }
        self.end_what_is_stored();
    }

    /// Chooses a sequence's next token. A panic in that is the end of its request alone.
    fn speak_or_fail(&mut self, index: usize, logits: &[f32]) {
        let job = self.running[index].job;
        if let Err(error) = contain(|| self.speak(index, logits)) {
            self.scratch = Scratch::default();
            self.doomed.push((job, error));
        }
    }

    /// Notes that the rows of `span` are stored, and publishes the blocks they complete.
    fn store(&mut self, span: &Span) {
        let sequence = &mut self.running[span.index];
        let job = self.jobs.get_mut(&sequence.job).expect("a running sequence has a job");
        let (from, to) = (sequence.stored, sequence.stored + span.rows);
        let new = to.min(sequence.prompt_len).saturating_sub(sequence.furthest.max(from));
        let again = to.min(sequence.furthest).saturating_sub(from);
        job.report.computed_tokens += new;
        job.report.recomputed_tokens += again;
        self.counters.computed_tokens += new as u64;
        self.counters.recomputed_tokens += again as u64;
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
            self.doomed.push((sequence.job, RequestError::PinLimit(limit)));
        }
        pinned.map(|_| ())
    }

    /// Chooses a sequence's next token. With the prompt's logits, all choices begin.
    fn speak(&mut self, index: usize, logits: &[f32]) {
        let now = self.now();
        let sequence = &mut self.running[index];
        let id = sequence.job;
        let job = self.jobs.get_mut(&id).expect("a running sequence has a job");
        let mut desk = Desk {
            vocabulary: &self.vocabulary,
            scratch: &mut self.scratch,
            counters: &mut self.counters,
            now,
        };
        job.prefill_done(now);
        let first = sequence.choice == 0 && sequence.tokens.len() == sequence.prompt_len;
        let siblings = if first { 1..job.choices } else { 0..0 };
        let siblings: Vec<Sequence> = siblings.map(|choice| sequence.sibling(choice)).collect();
        let mut said = say(sequence, job, logits, &mut desk);
        let parent = sequence.id;
        for mut child in siblings {
            said = said.and_then(|()| say(&mut child, job, logits, &mut desk));
            if child.ended.is_none() {
                self.forks.push(Fork { parent, child });
            }
        }
        if let Err(error) = said {
            self.doomed.push((id, error));
        }
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
            let job = self.jobs.get_mut(&sequence.job).expect("a running sequence has a job");
            if sequence.ended.is_none() && !sequence.answer.is_wanted() {
                job.prefill_done((self.clock)());
                (0..job.choices).for_each(|choice| job.finished(choice, FinishReason::Length));
                sequence.ended = Some(FinishReason::Length);
            }
        }
    }
}

/// Adds the next token to a sequence and tells its client.
fn say(
    sequence: &mut Sequence,
    job: &mut Job,
    logits: &[f32],
    desk: &mut Desk<'_>,
) -> Result<(), RequestError> {
    let step = sequence.answer.advance(logits, desk.vocabulary, desk.scratch)?;
    if let Some(token) = step.token {
        sequence.tokens.push(token);
        job.token(desk.now);
        desk.counters.generated_tokens += 1;
    }
    job.text(sequence.choice, step.text, step.tokens);
    if let Some(reason) = step.end {
        job.finished(sequence.choice, reason);
        sequence.ended = Some(reason);
    }
    Ok(())
}
