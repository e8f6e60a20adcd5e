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
pub(super) type Said = Result<Step, RequestError>;

/// Shared data for sampling; used by several threads.
pub(super) struct Voice {
    vocabulary: Arc<Vocabulary>,
    /// Scratch buffers that no thread uses.
    scratches: Mutex<Vec<Scratch>>,
}

/// An answer that is sampled in this step.
pub(super) struct Turn<'a> {
    pub(super) answer: &'a mut Answer,
    /// `[1 + draft, vocab]`; empty if `likeliest` is used
    pub(super) logits: &'a [f32],
    /// `[1 + draft]`
    pub(super) likeliest: &'a [Token],
    pub(super) draft: &'a [Token],
    /// Results: for the first row, and for further rows as long as the sampled tokens equal the draft.
    pub(super) said: &'a mut Vec<Said>,
}

impl Voice {
    pub(super) fn new(vocabulary: Arc<Vocabulary>) -> Voice {
        Voice { vocabulary, scratches: Mutex::default() }
    }

    pub(super) fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Samples the next token of `answer` from a prediction. A scratch buffer in use during a panic is not used again.
    pub(super) fn say(&self, answer: &mut Answer, predicted: Prediction<'_>) -> Said {
        let mut scratch = self.scratches().pop().unwrap_or_default();
        let said = answer.advance(predicted, &self.vocabulary, &mut scratch);
        self.scratches().push(scratch);
        said
    }

    /// Samples the next tokens of all answers.
    pub(super) fn take_turns(&self, turns: &mut [Turn<'_>], vocab_len: usize, threads: Option<&Pool>) {
        let take = |turns: &mut [Turn<'_>]| turns.iter_mut().for_each(|turn| turn.take(vocab_len, self));
        let logits: usize = turns.iter().map(|turn| turn.logits.len()).sum();
        let is_long = logits >= PARALLEL_MIN || turns.iter().any(|turn| turn.answer.is_guided());
        match threads.filter(|_| is_long) {
            Some(threads) => threads.run_chunks(turns, 1, |_, turns| take(turns)),
            None => take(turns),
        }
    }

    fn scratches(&self) -> MutexGuard<'_, Vec<Scratch>> {
        // Nothing panics under the lock.
        self.scratches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn<'_> {
    /// Samples the tokens of one answer. A panic becomes an error of the request.
    fn take(&mut self, vocab_len: usize, voice: &Voice) {
        let tokens = self.likeliest.iter().map(|&token| Prediction::Likeliest(token));
        let rows = self.logits.chunks_exact(vocab_len).map(Prediction::Logits).chain(tokens);
        for (index, row) in rows.enumerate() {
            let said = contain(|| voice.say(self.answer, row)).flatten();
            let drafted = self.draft.get(index).copied();
            let goes_on = said
                .as_ref()
                .is_ok_and(|step| step.end.is_none() && step.token.is_some() && step.token == drafted);
            self.said.push(said);
            if !goes_on {
                break;
            }
        }
        let goes_on = |said: &&mut Said| matches!(said, Ok(step) if step.end.is_none());
        if let Some(last) = self.said.last_mut().filter(goes_on)
            && let Err(error) = contain(|| self.answer.look_ahead())
        {
            *last = Err(error);
        }
    }
}
