//! Results: the open requests, their reports, and how each of them ends.
//!
//! ```text
//!           ┌─► finished    its choices have ended; notified after the statistics are updated
//!   open ───┼─► failed      at once, or at the end of the step with the error
//!           └─► cancelled   the client has gone
//! ```
//!
//! Knows no blocks: the scheduler removes a request here and its sequences from the queue and the running set.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kvik_text::stream::Vocabulary;

use super::answer::{Answer, Prediction, Step};
use super::draft::Draft;
use super::job::{Job, JobId};
use super::sampling::{Sampled, SamplingContext};
use super::sequence::Sequence;
use crate::api::{ChoiceTokens, EventSink, FinishReason, RequestError, Retained, Wants};
use crate::panics::contain;
use crate::stats::{Counters, DraftSource};

/// The requests of a scheduler.
pub(super) struct Results {
    open: BTreeMap<JobId, Job>,
    /// Requests that fail at the end of this step.
    failed: Vec<(JobId, RequestError)>,
    /// Requests that have finished and have not been notified yet.
    finished: Vec<Job>,
    submitted: u64,
    /// Number of these that are background requests.
    background: u64,
    /// Mean time from admission to the end of a foreground request.
    service: Option<Duration>,
    pub(super) counters: Counters,
    pub(super) sampling: SamplingContext,
}

/// A further choice of a request, which begins with the first prediction after its prompt.
pub(super) struct Sibling {
    pub(super) choice: u32,
    pub(super) answer: Answer,
    /// Its first token, once that is sampled.
    pub(super) sampled: Vec<Sampled>,
}

impl Results {
    /// No requests yet, for a model with this vocabulary.
    pub(super) fn new(vocabulary: Arc<Vocabulary>) -> Results {
        Results {
            open: BTreeMap::new(),
            failed: Vec::new(),
            finished: Vec::new(),
            submitted: 0,
            background: 0,
            service: None,
            counters: Counters::default(),
            sampling: SamplingContext::new(vocabulary),
        }
    }

    pub(super) fn vocabulary(&self) -> &Vocabulary {
        self.sampling.vocabulary()
    }

    /// Adds a request.
    pub(super) fn open(
        &mut self,
        sink: Box<dyn EventSink>,
        prompt_tokens: usize,
        choices: u32,
        now: Duration,
    ) -> JobId {
        let id = JobId(self.submitted);
        self.submitted += 1;
        self.open.insert(id, Job::new(sink, prompt_tokens, choices, now));
        id
    }

    /// Marks an open request as a background request.
    pub(super) fn set_background(&mut self, id: JobId) {
        self.background += 1;
        self.job(id).background = true;
    }

    /// The request of a sequence.
    pub(super) fn job(&mut self, id: JobId) -> &mut Job {
        self.open.get_mut(&id).expect("a sequence has a job")
    }

    /// Counts `new` prompt tokens of a request that were computed, and `again` tokens that were computed before a
    /// preemption; returns the request.
    pub(super) fn computed(&mut self, id: JobId, new: usize, again: usize) -> &mut Job {
        let job = self.open.get_mut(&id).expect("a sequence has a job");
        if job.is_waited_for() {
            self.counters.computed_tokens += new as u64;
        }
        self.counters.recomputed_tokens += again as u64;
        job.report.computed_tokens += new;
        job.report.recomputed_tokens += again;
        job
    }

    /// Counts the tokens drafted for a sequence.
    pub(super) fn drafted(&mut self, sequence: &Sequence, draft: &Draft) {
        let drafted = draft.tokens.len();
        self.counters.drafted_tokens[draft.source as usize] += drafted as u64;
        let new = ChoiceTokens { drafted, ..ChoiceTokens::default() };
        self.job(sequence.job).count(sequence.choice, new);
    }

    /// Counts an accepted draft token of a sequence.
    pub(super) fn accepted(&mut self, sequence: &Sequence, source: DraftSource) {
        self.counters.accepted_tokens[source as usize] += 1;
        let new = ChoiceTokens { accepted: 1, ..ChoiceTokens::default() };
        self.job(sequence.job).count(sequence.choice, new);
    }

    /// Updates the report of retained positions, which is that of the request's first choice. While that is computed
    /// again, it passes points before the last one of its answer.
    pub(super) fn note_retained(&mut self, sequence: &Sequence) {
        let report = &mut self.job(sequence.job).report;
        let is_later = |before: &Retained| before.tokens > sequence.stored;
        if sequence.choice == 0 && !report.retained.as_deref().is_some_and(is_later) {
            report.retained = sequence.retained();
        }
    }

    /// Ends the answer of a sequence after its tokens so far. A panic becomes an error of the request.
    pub(super) fn end_answer(&mut self, sequence: &mut Sequence, reason: FinishReason, now: Duration) {
        let job = self.open.get_mut(&sequence.job).expect("a sequence has a job");
        let ended = contain(|| {
            let step = sequence.answer.cut(reason);
            emit_step(sequence, job, step, now);
        });
        if let Err(error) = ended {
            self.fail_later(sequence.job, error);
        }
        sequence.end(reason);
    }

    /// Whether a request has not ended.
    pub(super) fn has(&self, id: JobId) -> bool {
        self.open.contains_key(&id)
    }

    /// The open requests, oldest first.
    pub(super) fn jobs(&self) -> impl Iterator<Item = (JobId, &Job)> {
        self.open.iter().map(|(&id, job)| (id, job))
    }

    /// Removes a request, to be passed to [`finish`](Results::finish), [`fail`](Results::fail) or
    /// [`cancel`](Results::cancel).
    pub(super) fn remove(&mut self, id: JobId) -> Option<Job> {
        self.open.remove(&id)
    }

    /// Finishes a request whose choices have all ended.
    pub(super) fn finish(&mut self, id: JobId, job: Job, now: Duration) {
        let took = now.saturating_sub(job.times.admitted.unwrap_or(now));
        if job.is_waited_for() {
            self.service = Some(self.service.map_or(took, |mean| (mean * 7 + took) / 8));
            self.counters.completed += 1;
        }
        tracing::debug!("request {}: {}", id.0, job.summary(now));
        self.finished.push(job);
    }

    /// Ends a request with an error.
    pub(super) fn fail(&mut self, id: JobId, job: Job, error: RequestError) {
        self.counters.failed += u64::from(job.is_waited_for());
        tracing::warn!("request {} failed: {error}", id.0);
        job.failed(error);
    }

    /// Ends a request whose client has gone.
    pub(super) fn cancel(&mut self, id: JobId, job: Job, now: Duration) {
        self.counters.cancelled += u64::from(job.is_waited_for());
        tracing::debug!("request {} cancelled: {}", id.0, job.summary(now));
        job.cancelled();
    }

    /// Marks a request to fail at the end of this step.
    pub(super) fn fail_later(&mut self, id: JobId, error: RequestError) {
        self.failed.push((id, error));
    }

    /// Takes the requests that fail at the end of this step.
    pub(super) fn take_failed(&mut self) -> Vec<(JobId, RequestError)> {
        std::mem::take(&mut self.failed)
    }

    /// Fails all requests, without touching their sequences.
    pub(super) fn fail_all(&mut self, error: &RequestError) {
        self.failed.clear();
        for (_, job) in std::mem::take(&mut self.open) {
            self.counters.failed += u64::from(job.is_waited_for());
            job.failed(error.clone());
        }
    }

    /// Notifies the requests that have finished.
    pub(super) fn notify_finished(&mut self) {
        self.finished.drain(..).for_each(Job::done);
    }

    /// Whether requests wait to be notified.
    pub(super) fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    /// Whether no request is open or waits to be notified.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.finished.is_empty()
    }

    /// Requests submitted so far, except those of the background.
    pub(super) fn submitted(&self) -> u64 {
        self.submitted - self.background
    }

    /// Mean time from admission to the end of a request; `None` until one has ended.
    pub(super) fn mean_service(&self) -> Option<Duration> {
        self.service
    }

    /// The further choices that begin with the next token of this sequence: those of its request, if it has generated
    /// nothing yet. A panic becomes an error of the request.
    pub(super) fn siblings(&self, sequence: &Sequence) -> Result<Vec<Sibling>, RequestError> {
        let job = self.open.get(&sequence.job).expect("a sequence has a job");
        let is_first = sequence.choice == 0 && !sequence.has_begun();
        let choices = if is_first { 1..job.choices } else { 0..0 };
        let answer = |choice| sequence.answer.sibling(choice);
        let sibling = |choice| Sibling { choice, answer: answer(choice), sampled: Vec::new() };
        contain(|| choices.map(sibling).collect())
    }

    /// Emits the next token of a sequence, sampled already or sampled now from the prediction, and the first tokens of the
    /// `siblings` that begin with it: returns those that continue. A panic becomes an error of the request.
    pub(super) fn emit(
        &mut self,
        sequence: &mut Sequence,
        next: (Prediction<'_>, Option<Sampled>),
        siblings: Vec<Sibling>,
        now: Duration,
    ) -> Result<Vec<Sequence>, RequestError> {
        contain(|| self.emit_choices(sequence, next, siblings, now)).flatten()
    }

    fn emit_choices(
        &mut self,
        sequence: &mut Sequence,
        (predicted, sampled): (Prediction<'_>, Option<Sampled>),
        siblings: Vec<Sibling>,
        now: Duration,
    ) -> Result<Vec<Sequence>, RequestError> {
        let job = self.open.get_mut(&sequence.job).expect("a sequence has a job");
        job.prefill_done(now);
        if let (Wants::Logits(tokens), Prediction::Logits(logits)) =
            (&sequence.answer.request().wants, predicted)
        {
            // These tokens are within the vocabulary: `RequestLimits` has checked them.
            job.vector(tokens.iter().map(|&token| logits[token as usize]).collect());
            return Ok(Vec::new());
        }
        let begun =
            |Sibling { choice, answer, mut sampled }| (sequence.sibling(choice, answer), sampled.pop());
        let mut siblings: Vec<(Sequence, Option<Sampled>)> = siblings.into_iter().map(begun).collect();
        let others = siblings.iter_mut().map(|(sibling, sampled)| (sibling, sampled.take()));
        for (sequence, sampled) in std::iter::once((sequence, sampled)).chain(others) {
            let step = sampled.unwrap_or_else(|| self.sampling.sample(&mut sequence.answer, predicted))?;
            self.counters.generated_tokens += u64::from(step.token.is_some());
            emit_step(sequence, job, step, now);
        }
        let siblings = siblings.into_iter().map(|(sibling, _)| sibling);
        Ok(siblings.filter(|sibling| sibling.ended.is_none()).collect())
    }
}

/// Adds the next token to a sequence, if there is one, and sends it to its client.
fn emit_step(sequence: &mut Sequence, job: &mut Job, step: Step, now: Duration) {
    if let Some(token) = step.token {
        let is_first = !sequence.has_begun();
        sequence.tokens.push(token);
        job.token(sequence.choice, is_first, now);
    }
    let limit = sequence.answer.request().line_limits.time_max;
    let is_late = limit.is_some_and(|limit| job.report.decode > limit) && step.text.contains('\n');
    let end = step.end.or_else(|| is_late.then_some(FinishReason::Length));
    job.text(sequence.choice, step.text, step.tokens);
    if let Some(reason) = end {
        job.finished(sequence.choice, reason);
        sequence.end(reason);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::api::{Event, Report};

    /// The names of the events that requests got, in order.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<String>>>);

    impl Log {
        fn sink(&self, name: &'static str) -> Box<dyn EventSink> {
            Box::new(Listener { log: self.clone(), name })
        }

        fn note(&self, name: &str, what: &str) {
            self.0.lock().unwrap().push(format!("{name} {what}"));
        }

        fn taken(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock().unwrap())
        }
    }

    struct Listener {
        log: Log,
        name: &'static str,
    }

    impl EventSink for Listener {
        fn send(&mut self, event: Event) -> bool {
            let what = match event {
                Event::Finished { .. } => "choice",
                Event::Done(_) => "done",
                Event::Failed(_) => "failed",
                _ => "other",
            };
            self.log.note(self.name, what);
            true
        }

        fn is_closed(&self) -> bool {
            false
        }
    }

    /// A client that leaves with the first event.
    struct Leaving(Log);

    impl EventSink for Leaving {
        fn send(&mut self, _: Event) -> bool {
            self.0.note("a", "left");
            false
        }

        fn given_up(&mut self, report: &Report) {
            self.0.note("a", &format!("owes {} tokens", report.generated_tokens));
        }

        fn is_closed(&self) -> bool {
            false
        }
    }

    fn results() -> Results {
        Results::new(Arc::new(Vocabulary::new::<&[u8]>([])))
    }

    const AT: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn a_finished_request_hears_of_it_only_when_it_is_notified() {
        let (log, mut results) = (Log::default(), results());
        let id = results.open(log.sink("a"), 3, 2, AT(0));
        (0..2).for_each(|choice| results.job(id).finished(choice, FinishReason::Length));
        let job = results.remove(id).unwrap();
        assert_eq!(job.open, 0);
        results.finish(id, job, AT(5));
        assert_eq!(log.taken(), ["a choice", "a choice"]);
        assert!(!results.is_empty() && results.has_finished());
        assert_eq!(results.counters.completed, 1, "it is counted before it is notified");
        results.notify_finished();
        assert_eq!(log.taken(), ["a done"]);
        assert!(results.is_empty());
    }

    #[test]
    fn a_client_that_leaves_at_the_last_token_is_charged_for_it() {
        let (log, mut results) = (Log::default(), results());
        let id = results.open(Box::new(Leaving(log.clone())), 3, 1, AT(0));
        let job = results.job(id);
        job.token(0, true, AT(1));
        job.text(0, "last".to_owned(), Vec::new());
        job.finished(0, FinishReason::Length);
        let job = results.remove(id).unwrap();
        results.finish(id, job, AT(1));
        results.notify_finished();
        assert_eq!(log.taken(), ["a left", "a owes 1 tokens"]);
    }

    #[test]
    fn requests_are_named_by_age_and_fail_one_by_one_or_together() {
        let (log, mut results) = (Log::default(), results());
        let ids = ["a", "b", "c"].map(|name| results.open(log.sink(name), 1, 1, AT(0)));
        assert!(ids.is_sorted());
        results.fail_later(ids[1], RequestError::Stopping);
        assert!(log.taken().is_empty(), "a step ends before its requests fail");
        for (id, error) in results.take_failed() {
            let job = results.remove(id).unwrap();
            results.fail(id, job, error);
        }
        assert_eq!(log.taken(), ["b failed"]);
        results.fail_later(ids[2], RequestError::Stopping);
        results.fail_all(&RequestError::Stopping);
        assert_eq!(log.taken(), ["a failed", "c failed"]);
        assert!(results.take_failed().is_empty() && results.is_empty());
        assert_eq!((results.counters.failed, results.submitted()), (3, 3));
    }

    #[test]
    fn the_mean_service_time_follows_the_latest_requests() {
        let (log, mut results) = (Log::default(), results());
        let mut check = |took: u64, expect: u64| {
            let id = results.open(log.sink("a"), 1, 1, AT(0));
            let mut job = results.remove(id).unwrap();
            job.times.admitted = Some(AT(100));
            results.finish(id, job, AT(100 + took));
            assert_eq!(results.mean_service(), Some(AT(expect)));
        };
        check(80, 80);
        check(0, 70);
        check(150, 80);
    }
}
