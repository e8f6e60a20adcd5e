//! Parallel sampling of the next tokens of a step.
//!
//! A row of logits is as long as the vocabulary, and a constraint may look at every token of it: with many sequences
//! that takes longer than everything else outside the model. Each answer depends only on its own logits, so the order
//! of sampling does not affect the result.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvik_cache::Token;
use kvik_kernels::Pool;
use kvik_text::sampler::Scratch;
use kvik_text::stream::Vocabulary;

use super::answer::{Answer, Prediction, Step};
use crate::api::RequestError;
use crate::panics::contain;

/// Number of logits of a step below which other threads cost more than they save, if no answer has a constraint.
const PARALLEL_MIN: usize = 128 * 1024;

/// The result of sampling from one row of logits.
pub(super) type Sampled = Result<Step, RequestError>;

/// Shared data for sampling; used by several threads.
pub(super) struct SamplingContext {
    vocabulary: Arc<Vocabulary>,
    /// Scratch buffers that no thread uses.
    scratches: Mutex<Vec<Scratch>>,
}

/// An answer that is sampled in this step.
pub(super) struct SampleJob<'a> {
    pub(super) answer: &'a mut Answer,
    /// `[1 + draft, vocab]`; empty if `likeliest` is used
    pub(super) logits: &'a [f32],
    /// `[1 + draft]`
    pub(super) likeliest: &'a [Token],
    pub(super) draft: &'a [Token],
    /// Results: for the first row, and for further rows as long as the sampled tokens equal the draft.
    pub(super) sampled: &'a mut Vec<Sampled>,
}

impl SamplingContext {
    pub(super) fn new(vocabulary: Arc<Vocabulary>) -> SamplingContext {
        SamplingContext { vocabulary, scratches: Mutex::default() }
    }

    pub(super) fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Samples the next token of `answer` from a prediction. A scratch buffer in use during a panic is not used again.
    pub(super) fn sample(&self, answer: &mut Answer, predicted: Prediction<'_>) -> Sampled {
        let mut scratch = self.scratches().pop().unwrap_or_default();
        let sampled = answer.advance(predicted, &self.vocabulary, &mut scratch);
        self.scratches().push(scratch);
        sampled
    }

    /// Samples the next tokens of all answers.
    pub(super) fn sample_batch(&self, jobs: &mut [SampleJob<'_>], vocab_len: usize, threads: Option<&Pool>) {
        let take = |jobs: &mut [SampleJob<'_>]| jobs.iter_mut().for_each(|job| job.take(vocab_len, self));
        let logits: usize = jobs.iter().map(|job| job.logits.len()).sum();
        let is_long = logits >= PARALLEL_MIN || jobs.iter().any(|job| job.answer.is_guided());
        match threads.filter(|_| is_long) {
            Some(threads) => threads.run_chunks(jobs, 1, |_, jobs| take(jobs)),
            None => take(jobs),
        }
    }

    fn scratches(&self) -> MutexGuard<'_, Vec<Scratch>> {
        // Nothing panics under the lock.
        self.scratches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SampleJob<'_> {
    /// Samples the tokens of one answer. A panic becomes an error of the request.
    fn take(&mut self, vocab_len: usize, sampling: &SamplingContext) {
        let tokens = self.likeliest.iter().map(|&token| Prediction::Likeliest(token));
        let rows = self.logits.chunks_exact(vocab_len).map(Prediction::Logits).chain(tokens);
        for (index, row) in rows.enumerate() {
            let sampled = contain(|| sampling.sample(self.answer, row)).flatten();
            let drafted = self.draft.get(index).copied();
            let goes_on = sampled
                .as_ref()
                .is_ok_and(|step| step.end.is_none() && step.token.is_some() && step.token == drafted);
            self.sampled.push(sampled);
            if !goes_on {
                break;
            }
        }
        let goes_on = |sampled: &&mut Sampled| matches!(sampled, Ok(step) if step.end.is_none());
        if let Some(last) = self.sampled.last_mut().filter(goes_on)
            && let Err(error) = contain(|| self.answer.look_ahead())
        {
            *last = Err(error);
        }
    }
}
