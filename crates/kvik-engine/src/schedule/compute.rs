//! Computes a plan and distributes the results: blocks to the cache, tokens to the answers, text to clients.

use kvik_cache::{BLOCK_POSITIONS, PinLimit, SeqId, Token};
use kvik_kernels::Pool;
use kvik_model::batch::{Computed, Runner};

use super::Scheduler;
use super::answer::Prediction;
use super::plan::{Kind, Plan, Span};
use super::sampling::{SampleJob, Sampled};
use super::sequence::Sequence;
use super::watching::Watching;
use crate::api::{FinishReason, RequestError};
use crate::panics::contain;

/// The results of a batch.
#[derive(Debug, Clone, Copy, Default)]
struct Outputs<'a> {
    /// `[rows with logits, vocab]`
    logits: &'a [f32],
    /// `[rows with hidden states, d_model]`
    hidden: &'a [f32],
    /// `[rows for which only the most likely token is computed]`
    likeliest: &'a [Token],
}

impl<'a> Outputs<'a> {
    /// Splits the outputs, of which the first `logits` values are logits.
    fn of(computed: Computed<'a>, logits: usize) -> Outputs<'a> {
        let (logits, hidden) = computed.outputs.split_at(logits);
        Outputs { logits, hidden, likeliest: computed.likeliest }
    }
}

impl Scheduler {
    /// Computes the rows of `plan`, and measures how long prompts take. If the plan is empty, prefetches instead.
    pub(super) fn compute(&mut self, plan: Plan, runner: &mut dyn Runner) {
        if plan.is_empty() {
            return self.prefetch();
        }
        let (started, vocab_len, threads) = (self.now(), runner.vocab_len(), runner.threads());
        let mut watching = Watching::take(&plan, &mut self.running);
        self.prepare(&plan);
        self.ram.settle(runner);
        let computed = contain(|| {
            let watched = &mut watching.watched();
            plan.with_batch(&self.running, &self.ram.cache, |batch| runner.compute(batch, watched))
        });
        let elapsed = self.now().saturating_sub(started);
        self.results.counters.model_time += elapsed;
        match computed {
            Ok(Err(fault)) => self.fail_batch(&plan, &fault, runner),
            Ok(Ok(computed)) => {
                watching.put_back(&mut self.running);
                self.disk.note_computed(plan.prefill_rows(), elapsed);
                self.background.note(&plan, &self.running, elapsed);
                self.mixed.note(&plan, elapsed);
                if plan.prefill_rows() == 0 {
                    self.drafting.note(plan.rows.len(), elapsed);
                }
                let outputs = Outputs::of(computed, plan.logits() * vocab_len);
                self.hand_out(&plan.spans, outputs, threads.as_deref());
                self.settle_states(&plan.spans, runner);
            }
            Err(error) => self.compute_apart(plan, &watching.indices(), error, runner),
        }
    }

    /// Copies what was computed of accepted draft tokens into the states of their sequences.
    fn settle_states(&mut self, spans: &[Span], runner: &mut dyn Runner) {
        for span in spans.iter().filter(|span| !span.draft.tokens.is_empty()) {
            let sequence = &self.running[span.index];
            if let Some(state) = self.ram.cache.state(sequence.id) {
                runner.settle_state(state, sequence.stored as u32);
            }
        }
    }

    /// Allocates room for the states that this step is to keep.
    fn prepare(&mut self, plan: &Plan) {
        for span in &plan.spans {
            let sequence = &self.running[span.index];
            let certain = span.rows - span.draft.tokens.len();
            let kept = if sequence.publishes_in().is_some() { certain } else { 0 };
            self.ram.cache.prepare(sequence.id, sequence.stored, sequence.stored + kept);
        }
    }

    /// Computes the sequences of `plan` one by one after the batch panicked: the request of a sequence that panics
    /// alone fails. The others get bit-identical results: results do not depend on the composition of the batch, and
    /// positions stored before the panic are stored again. Observations are incomplete after a panic, so the sequences
    /// at the indices `watched` restart.
    fn compute_apart(&mut self, plan: Plan, watched: &[usize], error: RequestError, runner: &mut dyn Runner) {
        let spans = plan.spans.len();
        tracing::error!("a batch of {spans} sequences panicked: {error}");
        if runner.state_bytes() > 0 {
            return self.begin_anew(&plan, &error);
        }
        let (mut done, mut logits, mut hidden) = (Vec::new(), Vec::new(), Vec::new());
        let (mut likeliest, mut restarts) = (Vec::new(), Vec::new());
        let vocab_len = runner.vocab_len();
        for (rows, span) in plan.apart() {
            let sequence = &self.running[span.index];
            let (id, job) = (sequence.id, sequence.job);
            let alone = Plan { rows, spans: vec![span] };
            let computed = match spans {
                1 => Err(error.clone()),
                // A fault stays until the end of the step.
                _ => contain(|| {
                    alone.with_batch(&self.running, &self.ram.cache, |batch| runner.compute(batch, &mut []))
                })
                .and_then(|computed| computed.map_err(RequestError::from)),
            };
            match computed {
                Ok(_) if watched.contains(&alone.spans[0].index) => restarts.push(id),
                Ok(computed) => {
                    let outputs = Outputs::of(computed, alone.logits() * vocab_len);
                    logits.extend_from_slice(outputs.logits);
                    hidden.extend_from_slice(outputs.hidden);
                    likeliest.extend_from_slice(outputs.likeliest);
                    done.extend(alone.spans);
                }
                Err(error) => self.results.fail_later(job, error),
            }
        }
        self.hand_out(&done, Outputs { logits: &logits, hidden: &hidden, likeliest: &likeliest }, None);
        for id in restarts {
            if let Some(sequence) = self.running.take(id) {
                self.preempt(sequence);
            }
        }
    }

    /// Restarts the sequences of `plan` after a panic: their recurrent states are between two steps. If the batch was a
    /// single sequence, its request fails; otherwise each runs alone until it is past the rows of this batch.
    fn begin_anew(&mut self, plan: &Plan, error: &RequestError) {
        let ids: Vec<(SeqId, usize)> =
            plan.spans.iter().map(|span| (self.running[span.index].id, span.rows)).collect();
        for &(id, rows) in &ids {
            self.ram.cache.spoil_state(id);
            if let [_] = ids[..] {
                let job = self.running[plan.spans[0].index].job;
                self.results.fail_later(job, error.clone());
            } else if let Some(mut sequence) = self.running.take(id) {
                sequence.alone_until = sequence.alone_until.max(sequence.stored + rows);
                self.preempt(sequence);
            }
        }
        self.hand_out(&[], Outputs::default(), None);
    }

    /// Distributes the results of `spans`.
    fn hand_out(&mut self, spans: &[Span], outputs: Outputs<'_>, threads: Option<&Pool>) {
        self.results.counters.steps += 1;
        let Outputs { logits, mut hidden, likeliest } = outputs;
        let wanted: usize = spans.iter().map(|span| span.logits).sum();
        let vocab_len = (logits.len() / wanted.max(1)).max(1);
        let sampled = self.sample(spans, &outputs, vocab_len, threads);
        let mut rows = logits.chunks_exact(vocab_len).map(Prediction::Logits);
        let mut tokens = likeliest.iter().map(|&token| Prediction::Likeliest(token));
        let states: usize = spans.iter().map(|span| span.hidden).sum();
        let d_model = hidden.len() / states.max(1);
        for (span, sampled) in spans.iter().zip(sampled) {
            if span.kind == Kind::Repeat {
                self.note_repeated(span);
                continue;
            }
            self.store(span.index, span.rows - span.draft.tokens.len());
            let pinned = self.pin_prompt(span.index);
            if span.hidden > 0 {
                let states = hidden.split_off(..span.hidden * d_model).unwrap_or_default();
                self.running[span.index].pooled.add(states, span.hidden);
            }
            let mut sampled = sampled.into_iter();
            let predicted = rows.by_ref().take(span.logits).chain(tokens.by_ref().take(span.likeliest));
            let mut rows = predicted.map(|row| (row, sampled.next()));
            if let Some((row, sampled)) = rows.next().filter(|_| pinned.is_ok()) {
                self.emit(span.index, row, sampled);
                if !span.draft.tokens.is_empty() {
                    self.verify(span, &mut rows);
                }
            }
            // Skips the rows of rejected draft tokens.
            rows.for_each(drop);
        }
        self.end_stored();
    }

    /// Samples the tokens of `spans` in parallel. Empty for an answer that has not begun: its choices begin with it.
    fn sample(
        &mut self,
        spans: &[Span],
        &Outputs { mut logits, mut likeliest, .. }: &Outputs<'_>,
        vocab_len: usize,
        threads: Option<&Pool>,
    ) -> Vec<Vec<Sampled>> {
        let mut sampled: Vec<Vec<Sampled>> = spans.iter().map(|_| Vec::new()).collect();
        let mut sequences = self.running.iter_mut().enumerate();
        let mut jobs = Vec::new();
        for (span, sampled) in spans.iter().zip(&mut sampled) {
            let own = logits.split_off(..span.logits * vocab_len).unwrap_or_default();
            let tokens = likeliest.split_off(..span.likeliest).unwrap_or_default();
            let nothing = own.is_empty() && tokens.is_empty();
            let sequence = sequences.find(|(index, _)| *index == span.index).map(|(_, sequence)| sequence);
            if let Some(sequence) = sequence.filter(|sequence| !nothing && sequence.has_begun()) {
                let (answer, draft) = (&mut sequence.answer, &span.draft.tokens[..]);
                jobs.push(SampleJob { answer, logits: own, likeliest: tokens, draft, sampled });
            }
        }
        self.results.sampling.sample_batch(&mut jobs, vocab_len, threads);
        sampled
    }

    /// Emits the next token of a sequence: the one already `said`, or one sampled now. The first prediction after a
    /// prompt starts all choices.
    pub(super) fn emit(&mut self, index: usize, predicted: Prediction<'_>, sampled: Option<Sampled>) {
        let now = self.now();
        let sequence = &mut self.running[index];
        let (id, job) = (sequence.id, sequence.job);
        match self.results.emit(sequence, predicted, sampled, now) {
            Ok(siblings) => siblings.into_iter().for_each(|child| self.running.fork(id, child)),
            Err(error) => self.results.fail_later(job, error),
        }
    }

    /// Records that the rows of `span` have repeated a part of their prompt.
    fn note_repeated(&mut self, span: &Span) {
        let sequence = &mut self.running[span.index];
        self.turns.charge(sequence.tenant, span.rows);
        if let Some(forgetting) = &mut sequence.forgetting {
            forgetting.note_repeated(span.rows);
        }
    }

    /// Marks the next `rows` tokens of a sequence as stored, and publishes the blocks they complete.
    pub(super) fn store(&mut self, index: usize, rows: usize) {
        let sequence = &mut self.running[index];
        let (from, to) = (sequence.stored, sequence.stored + rows);
        let new = to.min(sequence.prompt_len).saturating_sub(sequence.furthest.max(from));
        let again = to.min(sequence.furthest).saturating_sub(from);
        let job = self.results.computed(sequence.job, new, again);
        if new > 0 {
            job.prefill_progress(to.min(sequence.prompt_len), sequence.prompt_len);
        }
        self.turns.charge(sequence.tenant, rows);
        sequence.stored = to;
        sequence.furthest = sequence.furthest.max(to);
        let completes_block = from / BLOCK_POSITIONS < to / BLOCK_POSITIONS;
        if completes_block && sequence.publishes_in().is_some() {
            self.ram.cache.publish(sequence.id, sequence.stored_tokens());
        }
    }

    /// Pins the prompt of a sequence that asks for it, once it is stored and before the answer begins; on failure its
    /// request fails. Only the prompt is pinned, which its client can name again.
    fn pin_prompt(&mut self, index: usize) -> Result<(), PinLimit> {
        let sequence = &mut self.running[index];
        let Some(namespace) = sequence.publishes_in() else { return Ok(()) };
        // Of a compressed prefix, only the retained positions are pinned.
        if !sequence.lifetime.pin || sequence.kept_prefix().is_some() || sequence.stored < sequence.prompt_len
        {
            return Ok(());
        }
        sequence.lifetime.pin = false;
        let pinned = self.ram.cache.pin(namespace, sequence.prompt());
        if let Err(limit) = pinned {
            self.results.fail_later(sequence.job, RequestError::PinLimit(limit));
        }
        pinned.map(|_| ())
    }

    /// Ends requests that want no tokens and have their prompt stored.
    pub(super) fn end_stored(&mut self) {
        let is_stored = |sequence: &Sequence| sequence.missing() == 0 && !sequence.is_to_forget();
        let stored = (0..self.running.len()).filter(|&index| is_stored(&self.running[index]));
        let (stored, now) = (stored.collect::<Vec<usize>>(), self.now());
        for index in stored {
            let pinned = self.pin_prompt(index);
            let sequence = &mut self.running[index];
            if pinned.is_err() {
                sequence.ended = Some(FinishReason::Length);
                continue;
            }
            let job = self.results.job(sequence.job);
            if sequence.ended.is_none() && !sequence.answer.is_wanted() {
                job.prefill_done(now);
                if sequence.answer.request().wants.pooling().is_some() {
                    job.vector(sequence.pooled.embedding());
                }
                (0..job.choices).for_each(|choice| job.finished(choice, FinishReason::Length));
                sequence.ended = Some(FinishReason::Length);
            }
        }
    }
}
