//! Memory of generated answers that their clients have not read yet, a share of the memory for bodies and
//! answers.
//!
//! Text is counted while it waits for its reader, log-probabilities and what is repeated of the request in advance: a
//! request that wants many of them is refused while other answers hold the memory, rather than ended after most of it
//! was computed. What an answer holds until its end is counted until then.
//!
//! The engine's thread counts every token, so it takes the lock of the whole memory only for what counts there.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use kvik_cache::TenantId;
use kvik_engine::api::{Event, GeneratedToken, Request};

use crate::http::{
    body_memory::{BodyMemory, BodyShare, SMALL_BYTES},
    error::ApiError,
};

/// Bytes of an event in addition to its text and tokens, and of a token in addition to its log-probabilities.
const EVENT_BYTES: u64 = 128;
const TOKEN_BYTES: u64 = 64;
/// Bytes of a log-probability with its token's text: as stored in the answer, and as JSON.
const LOGPROB_BYTES: u64 = 256;
/// Tokens of a choice that are counted in advance: most answers are shorter than their limit.
const TOKENS_PLANNED: usize = 256;

/// Seconds after which a client whose answer was refused for lack of memory should retry.
const RETRY_AFTER_S: u64 = 1;

/// The share of one answer.
pub(super) struct AnswerMemory {
    share: BodyShare,
    /// Bytes up to which the share stays as it is: those counted in advance, or those of a small answer, which do not
    /// count, beside what is kept of its request.
    reserved: u64,
    /// Bytes that the client has not read, or that the answer holds until its end.
    held: AtomicU64,
    is_over: AtomicBool,
}

impl AnswerMemory {
    /// Reserves the share of the answer to these requests of a tenant, which holds so many bytes of what they were read
    /// from until its end.
    ///
    /// # Errors
    /// If other answers leave no memory for these or for the log-probabilities that are wanted.
    pub(super) fn of(
        memory: &Arc<BodyMemory>,
        tenant: TenantId,
        requests: &[Request],
        kept_bytes: u64,
    ) -> Result<Arc<AnswerMemory>, ApiError> {
        let kept_bytes = memory.counted_of_request(kept_bytes);
        let planned = requests.iter().map(planned).fold(kept_bytes, u64::saturating_add);
        let share = memory.hold(tenant, planned).ok_or_else(no_memory)?;
        Ok(Arc::new(AnswerMemory {
            share,
            reserved: planned.max(kept_bytes + SMALL_BYTES),
            held: AtomicU64::new(kept_bytes),
            is_over: AtomicBool::new(false),
        }))
    }

    /// Counts an event that waits for its reader. Returns whether it fits in memory.
    pub(super) fn add(&self, event: &Event) -> bool {
        let bytes = bytes_of(event);
        let held = self.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let fits = held <= self.reserved || self.resize();
        if !fits {
            self.is_over.store(true, Ordering::Relaxed);
        }
        fits
    }

    /// Uncounts the bytes of an event that is not in memory any more.
    pub(super) fn remove(&self, bytes: u64) {
        let before = self.held.fetch_sub(bytes, Ordering::Relaxed);
        if before > self.reserved {
            self.resize();
        }
    }

    /// Makes the share as large as what is held now, if there is memory.
    fn resize(&self) -> bool {
        self.share.resize_to(|| self.held.load(Ordering::Relaxed).max(self.reserved))
    }

    /// The error of an answer that ended early because it did not fit in memory, if this one did.
    pub(super) fn overrun(&self) -> Option<ApiError> {
        self.is_over.load(Ordering::Relaxed).then(no_memory)
    }
}

/// Bytes of a request's answer that are counted in advance: its log-probabilities.
fn planned(request: &Request) -> u64 {
    let Some(likeliest) = request.logprobs else { return 0 };
    let tokens = request.max_tokens.min(TOKENS_PLANNED) as u64 * u64::from(request.choices);
    tokens.saturating_mul(likeliest as u64 + 1).saturating_mul(LOGPROB_BYTES)
}

/// The bytes that an event counts for.
pub(super) fn bytes_of(event: &Event) -> u64 {
    match event {
        Event::Text { text, tokens, .. } => {
            EVENT_BYTES + text.len() as u64 + tokens.iter().map(bytes_of_token).sum::<u64>()
        }
        Event::Vector(values) => EVENT_BYTES + size_of_val(values.as_slice()) as u64,
        Event::Unconstrained(_)
        | Event::Prefill { .. }
        | Event::Finished { .. }
        | Event::Done(_)
        | Event::Failed(_) => EVENT_BYTES,
    }
}

fn bytes_of_token(token: &GeneratedToken) -> u64 {
    let logprobs = token.logprob.as_ref().map_or(0, |(_, likeliest)| likeliest.len() as u64 + 1);
    TOKEN_BYTES + logprobs * LOGPROB_BYTES
}

/// The error for an answer that does not fit in memory.
pub(super) fn no_memory() -> ApiError {
    let message = format!(
        "answers that their clients have not read yet take the memory for this one; read them, or try again in {RETRY_AFTER_S} s"
    );
    ApiError::busy(message, RETRY_AFTER_S)
}

#[cfg(test)]
mod tests {
    use kvik_engine::api::TokenLogprob;

    use super::*;

    const BODY_BYTES: u64 = 1 << 20;
    const TENANT: TenantId = TenantId(1);

    fn asking(max_tokens: usize, logprobs: Option<usize>) -> Vec<Request> {
        vec![Request { logprobs, ..Request::new(vec![1], max_tokens) }]
    }

    fn text(logprobs: usize) -> Event {
        let one = TokenLogprob { token: 1, bytes: b"x".to_vec(), shown: true, logprob: -1.0 };
        let token = GeneratedToken { token: 1, logprob: Some((one.clone(), vec![one; logprobs])) };
        Event::Text { choice: 0, text: "x".to_owned(), tokens: vec![token] }
    }

    #[test]
    fn many_log_probabilities_are_refused_together_and_not_alone() {
        let memory = BodyMemory::new(BODY_BYTES, false);
        let many = asking(128, Some(2000));
        let first = AnswerMemory::of(&memory, TENANT, &many, 0).expect("it is alone");
        assert!(AnswerMemory::of(&memory, TENANT, &many, 0).is_err());
        let few = AnswerMemory::of(&memory, TENANT, &asking(128, None), 0);
        assert!(few.is_ok(), "text is not counted before");
        drop(first);
        assert!(AnswerMemory::of(&memory, TENANT, &many, 0).is_ok());
    }

    /// What answers repeat of their requests filled the memory: a request of 32 MiB had twice that in its stream.
    #[test]
    fn what_is_kept_of_a_request_counts_until_the_end_of_its_answer() {
        let memory = BodyMemory::new(BODY_BYTES, false);
        let kept = BODY_BYTES + BODY_BYTES / 8 + SMALL_BYTES;
        let answer = |kept_bytes| AnswerMemory::of(&memory, TENANT, &asking(8, None), kept_bytes);
        let first = answer(kept).unwrap();
        assert!(first.add(&text(0)));
        first.remove(bytes_of(&text(0)));
        assert_eq!(memory.taken(), BODY_BYTES, "also when all was read");
        let second = answer(kept).unwrap();
        assert!(answer(kept).is_err(), "they have the memory of two bodies");
        drop((first, second));
        assert!(answer(3 * kept).is_ok(), "it is alone");
        assert_eq!(memory.taken(), 0);
    }

    #[test]
    fn answers_that_are_not_read_have_a_bound_together() {
        let memory = BodyMemory::new(BODY_BYTES, false);
        let answers: Vec<_> =
            (0..100).map(|_| AnswerMemory::of(&memory, TENANT, &asking(4096, None), 0).unwrap()).collect();
        let event = text(10);
        let fitted: u64 =
            answers.iter().map(|answer| (0..100).take_while(|_| answer.add(&event)).count() as u64).sum();
        let counted = fitted * bytes_of(&event);
        let small = 100 * SMALL_BYTES;
        assert!((2 * BODY_BYTES..=2 * BODY_BYTES + small).contains(&counted), "{counted}");
        assert!(answers.iter().any(|answer| answer.overrun().is_some()));
    }

    #[test]
    fn an_answer_changes_its_share_only_above_what_counts() {
        let memory = BodyMemory::new(BODY_BYTES, false);
        let event = text(0);
        let bytes = bytes_of(&event);
        for (logprobs, planned) in [(None, 0), (Some(2), 256 * 3 * LOGPROB_BYTES)] {
            let answer = AnswerMemory::of(&memory, TENANT, &asking(4096, logprobs), 0).unwrap();
            let fit = planned.max(SMALL_BYTES) / bytes;
            for _ in 0..fit {
                assert!(answer.add(&event));
                assert_eq!(answer.share.bytes(), planned, "it is within what was reserved");
            }
            for more in 1..=10 {
                assert!(answer.add(&event));
                assert_eq!(memory.taken(), (fit + more) * bytes - SMALL_BYTES);
            }
            (0..fit + 10).for_each(|_| answer.remove(bytes));
            assert_eq!(memory.taken(), planned.saturating_sub(SMALL_BYTES));
        }
    }

    #[test]
    fn what_was_read_is_free() {
        let memory = BodyMemory::new(BODY_BYTES, false);
        let slow = AnswerMemory::of(&memory, TENANT, &asking(4096, Some(2000)), 0).unwrap();
        let answer = AnswerMemory::of(&memory, TENANT, &asking(4096, None), 0).unwrap();
        for _ in 0..1000 {
            assert!(answer.add(&text(20)));
            answer.remove(bytes_of(&text(20)));
        }
        assert!(answer.overrun().is_none());
        drop(slow);
    }
}
