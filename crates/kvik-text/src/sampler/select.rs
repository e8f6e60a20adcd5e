//! Selection of the largest logits without sorting.

use std::cmp::Ordering;

use kvik_cache::Token;
use kvik_kernels::{largest, vectorised};

/// A candidate token with its logit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub(super) token: Token,
    pub(super) logit: f32,
}

/// Logits compared at once; the compiler vectorises the loops over a lane.
const LANE: usize = 16;
/// Logits per part whose maximum is computed at once.
const PART: usize = 1024;

/// The token of the largest logit, the lowest id among equals; `None` if no token is possible.
pub fn likeliest(logits: &[f32]) -> Option<Token> {
    let (mut start, mut most) = (0, f32::NEG_INFINITY);
    for (at, part) in (0..).step_by(PART).zip(logits.chunks(PART)) {
        let own = largest(part);
        if own > most {
            (start, most) = (at, own);
        }
    }
    let within = logits[start..].iter().position(|&logit| logit == most && logit > f32::NEG_INFINITY)?;
    Some((start + within) as Token)
}

/// [`likeliest`] among the tokens in `mask`: words of 32 tokens each, as a constraint provides them.
pub(super) fn likeliest_among(logits: &[f32], mask: &[u32]) -> Option<Token> {
    vectorised(
        #[inline(always)]
        || {
            let (mut token, mut best) = (None, f32::NEG_INFINITY);
            for (index, (&word, lane)) in mask.iter().zip(logits.chunks(32)).enumerate() {
                let allowed = |bit: usize, logit: f32| (word >> bit & 1 != 0) & (logit > best);
                let is_better = |any, (bit, &logit): (usize, &f32)| any | allowed(bit, logit);
                if word == 0 || !lane.iter().enumerate().fold(false, is_better) {
                    continue;
                }
                for (bit, &logit) in lane.iter().enumerate() {
                    if word >> bit & 1 != 0 && logit > best {
                        (token, best) = (Some((index * 32 + bit) as Token), logit);
                    }
                }
            }
            token
        },
    )
}

/// The likeliest token that `allows` accepts, if it is among the `count` likeliest of all; uses `candidates`
/// as a buffer.
pub(super) fn likeliest_allowed<E>(
    logits: &[f32],
    count: usize,
    candidates: &mut Vec<Candidate>,
    mut allows: impl FnMut(Token) -> Result<bool, E>,
) -> Result<Option<Token>, E> {
    top(logits, count, candidates);
    for candidate in candidates {
        if allows(candidate.token)? {
            return Ok(Some(candidate.token));
        }
    }
    Ok(None)
}

/// Fills `out` with the `count` largest logits, largest first, lower ids first among equals.
/// Impossible tokens are excluded.
pub(super) fn top(logits: &[f32], count: usize, out: &mut Vec<Candidate>) {
    out.clear();
    if count == 0 {
        return;
    }
    // A logit not above `threshold` has `count` better ones before it. The threshold rises each
    // time the buffer of twice `count` is full, so that soon hardly any lane passes it.
    let mut threshold = f32::NEG_INFINITY;
    vectorised(
        #[inline(always)]
        || {
            for (index, lane) in logits.chunks(LANE).enumerate() {
                if !lane.iter().fold(false, |any, &logit| any | (logit > threshold)) {
                    continue;
                }
                for (offset, &logit) in lane.iter().enumerate() {
                    if logit > threshold {
                        out.push(Candidate { token: (index * LANE + offset) as Token, logit });
                    }
                }
                if out.len() >= count.saturating_mul(2).max(64) {
                    threshold = shrink(out, count);
                }
            }
        },
    );
    shrink(out, count);
    out.sort_unstable_by(descending);
}

/// Keeps the `count` best candidates and returns the lowest logit among them.
fn shrink(candidates: &mut Vec<Candidate>, count: usize) -> f32 {
    if candidates.len() <= count {
        return f32::NEG_INFINITY;
    }
    let (_, last, _) = candidates.select_nth_unstable_by(count - 1, descending);
    let threshold = last.logit;
    candidates.truncate(count);
    threshold
}

pub(super) fn descending(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}
