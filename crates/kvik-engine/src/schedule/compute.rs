//! Computes a plan and distributes the results: blocks to the cache, tokens to the answers, text to clients.

use std::time::Duration;

use kvik_cache::{BLOCK_POSITIONS, Cache, PinLimit, SeqId, StateId, Token};
use kvik_kernels::Pool;
use kvik_model::batch::{Computed, Runner, RunnerFault};

use super::answer::Prediction;
use super::draft::{Draft, Drafting};
use super::jobs::Jobs;
use super::plan::{Kind, Plan, Span};
use super::prefixes::Prefixes;
use super::results::{Results, Sibling};
use super::running::Running;
use super::sampling::{SampleJob, Sampled};
use super::sequence::Sequence;
use super::shares::RowShares;
use super::watching::Watching;
use crate::api::{FinishReason, RequestError, Wants};
use crate::panics::contain;
use crate::stats::DraftSource;

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

/// What is sampled for a span.
#[derive(Default)]
struct Samples {
    /// The tokens of its sequence: for the first row, and for further rows as long as they equal the draft.
    own: Vec<Sampled>,
    /// The choices that begin with the first of them.
    siblings: Vec<Sibling>,
}

/// Computes the rows of `plan`, and measures how long they take.
///
/// # Errors
/// If the runner has a fault: then nothing was computed, and the requests of the batch fail.
pub(super) fn compute(
    plan: Plan,
    jobs: &mut Jobs,
    prefixes: &mut Prefixes,
    shares: &mut RowShares,
    runner: &mut dyn Runner,
) -> Result<(), RunnerFault> {
    let (started, vocab_len, threads) = (prefixes.now(), runner.vocab_len(), runner.threads());
    let mut watching = Watching::take(&plan, &mut jobs.running);
    prepare(&plan, &jobs.running, &mut prefixes.ram.cache);
    prefixes.ram.settle(runner);
    let computed = contain(|| {
        let watched = &mut watching.watched();
        plan.with_batch(&jobs.running, &prefixes.ram.cache, |batch| runner.compute(batch, watched))
    });
    let elapsed = prefixes.now().saturating_sub(started);
    jobs.results.counters.model_time += elapsed;
    match computed {
        Ok(Err(fault)) => {
            for span in &plan.spans {
                jobs.results.fail_later(jobs.running[span.index].job, fault.clone().into());
            }
            return Err(fault);
        }
        Ok(Ok(computed)) => {
            watching.put_back(&mut jobs.running);
            prefixes.disk.note_computed(plan.prefill_rows(), elapsed);
            divide_time(&plan, jobs, elapsed);
            shares.note(&plan, &jobs.running, elapsed);
            let outputs = Outputs::of(computed, plan.logits() * vocab_len);
            let drafting = &mut shares.drafting;
            hand_out(&plan.spans, outputs, threads.as_deref(), jobs, prefixes, drafting);
            let settled = settle_states(&plan.spans, &jobs.running, prefixes, runner);
            jobs.results.counters.model_time += settled;
            shares.note_decoded(&plan, elapsed + settled);
        }
        Err(error) => {
            let spans = plan.spans.len();
            tracing::error!("a batch of {spans} sequences panicked: {error}");
            if runner.state_bytes() > 0 {
                begin_anew(&plan, &error, jobs, prefixes);
            } else {
                let watched = watching.indices();
                compute_apart(plan, &watched, error, jobs, prefixes, &mut shares.drafting, runner);
            }
        }
    }
    Ok(())
}

/// Divides the time of a batch among its rows, for those of prompts.
fn divide_time(plan: &Plan, jobs: &mut Jobs, elapsed: Duration) {
    let of_row = elapsed / plan.rows.len().max(1) as u32;
    for span in plan.spans.iter().filter(|span| span.kind == Kind::Tokens) {
        let sequence = &jobs.running[span.index];
        let (job, rows) = (sequence.job, sequence.new_prompt_rows(span.rows - span.draft.tokens.len()));
        jobs.results.job(job).report.prompt_time += of_row * rows as u32;
    }
}

/// Copies what was computed of accepted draft tokens into the states of their sequences; returns how long that took.
fn settle_states(
    spans: &[Span],
    running: &Running,
    prefixes: &Prefixes,
    runner: &mut dyn Runner,
) -> Duration {
    let state = |span: &Span| {
        let sequence = &running[span.index];
        Some((prefixes.ram.cache.state(sequence.id)?, sequence.stored as u32))
    };
    let drafted = spans.iter().filter(|span| !span.draft.tokens.is_empty());
    let states: Vec<(StateId, u32)> = drafted.filter_map(state).collect();
    if states.is_empty() {
        return Duration::ZERO;
    }
    let started = prefixes.now();
    states.into_iter().for_each(|(state, positions)| runner.settle_state(state, positions));
    prefixes.now().saturating_sub(started)
}

/// Allocates room for the states that this step is to keep.
fn prepare(plan: &Plan, running: &Running, cache: &mut Cache) {
    for span in &plan.spans {
        let sequence = &running[span.index];
        let certain = span.rows - span.draft.tokens.len();
        let kept = if sequence.publishes_in().is_some() { certain } else { 0 };
        cache.prepare(sequence.id, sequence.stored, sequence.stored + kept);
    }
}

/// Computes the sequences of `plan` one by one after the batch panicked: the request of a sequence that panics alone
/// fails. The others get bit-identical results: results do not depend on the composition of the batch, and positions
/// stored before the panic are stored again. Observations are incomplete after a panic, so the sequences at the indices
/// `watched` restart.
fn compute_apart(
    plan: Plan,
    watched: &[usize],
    error: RequestError,
    jobs: &mut Jobs,
    prefixes: &mut Prefixes,
    drafting: &mut Drafting,
    runner: &mut dyn Runner,
) {
    let spans = plan.spans.len();
    let (mut done, mut logits, mut hidden) = (Vec::new(), Vec::new(), Vec::new());
    let (mut likeliest, mut restarts) = (Vec::new(), Vec::new());
    let vocab_len = runner.vocab_len();
    for (rows, span) in plan.apart() {
        let sequence = &jobs.running[span.index];
        let (id, job) = (sequence.id, sequence.job);
        let alone = Plan { rows, spans: vec![span] };
        let computed = match spans {
            1 => Err(error.clone()),
            // A fault stays until the end of the step.
            _ => contain(|| {
                let (running, cache) = (&jobs.running, &prefixes.ram.cache);
                alone.with_batch(running, cache, |batch| runner.compute(batch, &mut []))
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
            Err(error) => jobs.results.fail_later(job, error),
        }
    }
    let outputs = Outputs { logits: &logits, hidden: &hidden, likeliest: &likeliest };
    hand_out(&done, outputs, None, jobs, prefixes, drafting);
    for id in restarts {
        if let Some(sequence) = jobs.running.take(id) {
            jobs.preempt(sequence, &mut prefixes.ram.cache);
        }
    }
}

/// Restarts the sequences of `plan` after a panic: their recurrent states are between two steps. If the batch was a
/// single sequence, its request fails; otherwise each runs alone until it is past the rows of this batch.
fn begin_anew(plan: &Plan, error: &RequestError, jobs: &mut Jobs, prefixes: &mut Prefixes) {
    let (now, cache) = (prefixes.now(), &mut prefixes.ram.cache);
    let ids: Vec<(SeqId, usize)> =
        plan.spans.iter().map(|span| (jobs.running[span.index].id, span.rows)).collect();
    for &(id, rows) in &ids {
        cache.spoil_state(id);
        if let [_] = ids[..] {
            let job = jobs.running[plan.spans[0].index].job;
            jobs.results.fail_later(job, error.clone());
        } else if let Some(mut sequence) = jobs.running.take(id) {
            sequence.alone_until = sequence.alone_until.max(sequence.stored + rows);
            jobs.preempt(sequence, cache);
        }
    }
    jobs.results.counters.steps += 1;
    end_stored(jobs, cache, now);
}

/// Distributes the results of `spans`.
fn hand_out(
    spans: &[Span],
    outputs: Outputs<'_>,
    threads: Option<&Pool>,
    jobs: &mut Jobs,
    prefixes: &mut Prefixes,
    drafting: &mut Drafting,
) {
    jobs.results.counters.steps += 1;
    let Outputs { logits, mut hidden, likeliest } = outputs;
    let wanted: usize = spans.iter().map(|span| span.logits).sum();
    let vocab_len = (logits.len() / wanted.max(1)).max(1);
    let sampled = sample(spans, &outputs, vocab_len, jobs, threads);
    let mut rows = logits.chunks_exact(vocab_len).map(Prediction::Logits);
    let mut tokens = likeliest.iter().map(|&token| Prediction::Likeliest(token));
    let states: usize = spans.iter().map(|span| span.hidden).sum();
    let d_model = hidden.len() / states.max(1);
    for (span, Samples { own, siblings }) in spans.iter().zip(sampled) {
        if span.kind == Kind::Repeat {
            note_repeated(span, jobs);
            continue;
        }
        let cache = &mut prefixes.ram.cache;
        store(span.index, span.rows - span.draft.tokens.len(), jobs, cache);
        let pinned = pin_prompt(span.index, jobs, cache);
        if span.hidden > 0 {
            let states = hidden.split_off(..span.hidden * d_model).unwrap_or_default();
            jobs.running[span.index].pooled.add(states, span.hidden);
        }
        let mut sampled = own.into_iter();
        let predicted = rows.by_ref().take(span.logits).chain(tokens.by_ref().take(span.likeliest));
        let mut rows = predicted.map(|row| (row, sampled.next()));
        if let Some(next) = rows.next().filter(|_| pinned.is_ok()) {
            emit(span.index, next, siblings, jobs, prefixes.now());
            if !span.draft.tokens.is_empty() {
                verify(span, &mut rows, jobs, prefixes, drafting);
            }
        }
        // Skips the rows of rejected draft tokens.
        rows.for_each(drop);
    }
    let now = prefixes.now();
    end_stored(jobs, &mut prefixes.ram.cache, now);
}

/// Samples the tokens of `spans` in parallel, and where answers begin, the first tokens of all choices.
fn sample(
    spans: &[Span],
    &Outputs { mut logits, mut likeliest, .. }: &Outputs<'_>,
    vocab_len: usize,
    jobs: &mut Jobs,
    threads: Option<&Pool>,
) -> Vec<Samples> {
    let Jobs { running, results, .. } = jobs;
    let mut all: Vec<Samples> = spans.iter().map(|span| begin(span, running, results)).collect();
    let mut sequences = running.iter_mut().enumerate();
    let mut batch = Vec::new();
    for (span, Samples { own: sampled, siblings }) in spans.iter().zip(&mut all) {
        let logits = logits.split_off(..span.logits * vocab_len).unwrap_or_default();
        let likeliest = likeliest.split_off(..span.likeliest).unwrap_or_default();
        let sequence = sequences.find(|(index, _)| *index == span.index).map(|(_, sequence)| sequence);
        if let Some(sequence) = sequence.filter(|sequence| is_sampled(span, sequence) && sampled.is_empty()) {
            let (answer, draft) = (&mut sequence.answer, &span.draft.tokens[..]);
            batch.push(SampleJob { answer, logits, likeliest, draft, sampled });
            batch.extend(siblings.iter_mut().map(|Sibling { answer, sampled, .. }| SampleJob {
                answer,
                logits,
                likeliest,
                draft: &[],
                sampled,
            }));
        }
    }
    results.sampling.sample_batch(&mut batch, vocab_len, threads);
    all
}

/// The choices that begin with the first token of `span`, not sampled yet; or why there are none.
fn begin(span: &Span, running: &Running, results: &Results) -> Samples {
    let sequence = &running[span.index];
    if !is_sampled(span, sequence) {
        return Samples::default();
    }
    match results.siblings(sequence) {
        Ok(siblings) => Samples { siblings, ..Samples::default() },
        Err(error) => Samples { own: vec![Err(error)], ..Samples::default() },
    }
}

/// Whether tokens are sampled from the predictions of a span.
fn is_sampled(span: &Span, sequence: &Sequence) -> bool {
    let is_text = sequence.answer.request().wants == Wants::Text;
    is_text && sequence.ended.is_none() && span.logits + span.likeliest > 0
}

/// Emits the next token of a sequence, and the first tokens of the `siblings` that begin with it.
fn emit(
    index: usize,
    next: (Prediction<'_>, Option<Sampled>),
    siblings: Vec<Sibling>,
    jobs: &mut Jobs,
    now: Duration,
) {
    let sequence = &mut jobs.running[index];
    let (id, job) = (sequence.id, sequence.job);
    match jobs.results.emit(sequence, next, siblings, now) {
        Ok(siblings) => siblings.into_iter().for_each(|child| jobs.running.fork(id, child)),
        Err(error) => jobs.results.fail_later(job, error),
    }
}

/// Accepts the tokens of the draft of `span` as long as they equal the sampled ones; `rows` are the predictions after
/// each of them, with the tokens sampled already.
fn verify<'a>(
    span: &Span,
    rows: &mut impl Iterator<Item = (Prediction<'a>, Option<Sampled>)>,
    jobs: &mut Jobs,
    prefixes: &mut Prefixes,
    drafting: &mut Drafting,
) {
    let Draft { tokens, source, .. } = &span.draft;
    jobs.results.drafted(&jobs.running[span.index], &span.draft);
    let mut drawn = 0;
    for &token in tokens {
        let sequence = &jobs.running[span.index];
        let is_drawn = sequence.missing() == 1 && sequence.tokens.last() == Some(&token);
        if sequence.ended.is_some() || !is_drawn {
            break;
        }
        let Some(next) = rows.next() else { break };
        drawn += 1;
        jobs.results.accepted(sequence, *source);
        store(span.index, 1, jobs, &mut prefixes.ram.cache);
        emit(span.index, next, Vec::new(), jobs, prefixes.now());
    }
    if matches!(source, DraftSource::Model | DraftSource::Head) {
        drafting.note_drawn(*source, tokens.len(), drawn);
    }
}

/// Records that the rows of `span` have repeated a part of their prompt.
fn note_repeated(span: &Span, jobs: &mut Jobs) {
    jobs.charge(span.index, span.rows);
    let sequence = &mut jobs.running[span.index];
    if let Some(forgetting) = &mut sequence.forgetting {
        forgetting.note_repeated(span.rows);
    }
}

/// Marks the next `rows` tokens of a sequence as stored, and publishes the blocks they complete.
fn store(index: usize, rows: usize, jobs: &mut Jobs, cache: &mut Cache) {
    jobs.charge(index, rows);
    let sequence = &mut jobs.running[index];
    let (from, to) = (sequence.stored, sequence.stored + rows);
    let new = sequence.new_prompt_rows(rows);
    let again = to.min(sequence.furthest).saturating_sub(from);
    let job = jobs.results.computed(sequence.job, new, again);
    if new > 0 {
        job.prefill_progress(to.min(sequence.prompt_len), sequence.prompt_len);
    }
    sequence.stored = to;
    sequence.furthest = sequence.furthest.max(to);
    let completes_block = from / BLOCK_POSITIONS < to / BLOCK_POSITIONS;
    if completes_block && sequence.publishes_in().is_some() {
        cache.publish(sequence.id, sequence.stored_tokens());
    }
}

/// Pins the prompt of a sequence that asks for it, once it is stored and before the answer begins; on failure its
/// request fails. Only the prompt is pinned, which its client can name again.
fn pin_prompt(index: usize, jobs: &mut Jobs, cache: &mut Cache) -> Result<(), PinLimit> {
    let sequence = &mut jobs.running[index];
    let Some(namespace) = sequence.publishes_in() else { return Ok(()) };
    // Of a compressed prefix, only the retained positions are pinned.
    if !sequence.lifetime.pin || sequence.kept_prefix().is_some() || sequence.stored < sequence.prompt_len {
        return Ok(());
    }
    sequence.lifetime.pin = false;
    let pinned = cache.pin(namespace, sequence.prompt());
    if let Err(limit) = pinned {
        jobs.results.fail_later(sequence.job, RequestError::PinLimit(limit));
    }
    pinned.map(|_| ())
}

/// Ends requests that want no tokens and have their prompt stored.
pub(super) fn end_stored(jobs: &mut Jobs, cache: &mut Cache, now: Duration) {
    let is_stored = |sequence: &Sequence| sequence.missing() == 0 && !sequence.is_to_forget();
    let stored = (0..jobs.running.len()).filter(|&index| is_stored(&jobs.running[index]));
    for index in stored.collect::<Vec<usize>>() {
        let pinned = pin_prompt(index, jobs, cache);
        let sequence = &mut jobs.running[index];
        if pinned.is_err() {
            sequence.end(FinishReason::Length);
            continue;
        }
        let job = jobs.results.job(sequence.job);
        if sequence.ended.is_none() && !sequence.answer.is_wanted() {
            job.prefill_done(now);
            if sequence.answer.request().wants.pooling().is_some() {
                job.vector(sequence.pooled.embedding());
            }
            (0..job.choices).for_each(|choice| job.finished(choice, FinishReason::Length));
            sequence.end(FinishReason::Length);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kvik_cache::TenantId;
    use kvik_text::stream::{TokenKind, Vocabulary};

    use super::*;
    use crate::api::Nobody;

    const PROMPT: usize = 5;

    /// The last rows of a prompt of five tokens, of which so many predict a token.
    fn span(logits: usize) -> Span {
        let (draft, kind) = (Draft::default(), Kind::Tokens);
        Span { index: 0, rows: PROMPT, logits, likeliest: 0, draft, hidden: 0, followed_from: None, kind }
    }

    /// One after the other they would hold up all other requests.
    #[test]
    fn the_first_tokens_of_all_choices_are_sampled_in_one_batch() {
        let words = (b'a'..=b'd').map(|letter| (vec![letter], TokenKind::Text));
        let mut jobs = Jobs::new(1, Arc::new(Vocabulary::new(words)));
        let job = jobs.results.open(Box::new(Nobody), PROMPT, 64, Duration::ZERO);
        let sequence = Sequence::fake(TenantId(0), vec![7; PROMPT]);
        jobs.running.insert(Sequence { id: SeqId(1), job, ..sequence });
        let outputs = Outputs { logits: &[0.0, 1.0, 3.0, 2.0], ..Outputs::default() };
        let before = sample(&[span(0)], &Outputs::default(), 4, &mut jobs, None);
        assert!(
            before[0].own.is_empty() && before[0].siblings.is_empty(),
            "the prompt is not read to its end"
        );
        let Some(Samples { own, siblings }) = sample(&[span(1)], &outputs, 4, &mut jobs, None).pop() else {
            panic!("nothing is sampled")
        };
        let tokens = |sampled: &[Sampled]| -> Vec<Option<Token>> {
            sampled.iter().map(|step| step.as_ref().unwrap().token).collect()
        };
        assert_eq!((tokens(&own), siblings.len()), (vec![Some(2)], 63));
        for (number, Sibling { choice, sampled, .. }) in (1..).zip(&siblings) {
            assert_eq!((*choice, tokens(sampled)), (number, vec![Some(2)]));
        }
    }
}
