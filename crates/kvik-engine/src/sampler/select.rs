//! Finding the largest logits without sorting them.

use std::cmp::Ordering;

use kvik_cache::Token;
use kvik_kernels::vectorised;

/// A token that may be chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub(super) token: Token,
    pub(super) logit: f32,
}

/// Logits compared at once; the compiler turns the loops over a lane into SIMD.
const LANE: usize = 16;

/// The largest logit; negative infinity if there is none. Ignores NaN.
pub(super) fn largest(logits: &[f32]) -> f32 {
    let mut lane = [f32::NEG_INFINITY; LANE];
    let (chunks, rest) = logits.as_chunks::<LANE>();
    for chunk in chunks {
        for (best, &logit) in lane.iter_mut().zip(chunk) {
            *best = if logit > *best { logit } else { *best };
        }
    }
    lane.iter().chain(rest).fold(f32::NEG_INFINITY, |best, &x| if x > best { x } else { best })
}

/// The token of the largest logit, the lowest id among equals; `None` if no token is possible.
pub(crate) fn likeliest(logits: &[f32]) -> Option<Token> {
    let max = largest(logits);
    if max == f32::NEG_INFINITY {
        return None;
    }
    // Searches by lanes first: comparing sixteen logits at once is SIMD, `position` is not.
    let (chunks, _) = logits.as_chunks::<LANE>();
    let hit = |chunk: &[f32; LANE]| chunk.iter().fold(false, |hit, &x| hit | (x == max));
    let start = chunks.iter().position(hit).unwrap_or(chunks.len()) * LANE;
    let within = logits[start..].iter().position(|&logit| logit == max)?;
    Some((start + within) as Token)
}

/// [`likeliest`] of the tokens in `mask`: words of 32 tokens each, as a constraint gives them.
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

/// `e` to the power of `x`, for `x` at most 0; 0 below -87 and for NaN.
/// Relative error below 3e-7; unlike the standard library's, the compiler vectorises it.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let in_range = x > -87.0;
    let x = if in_range { x } else { -87.0 };
    let rounded = x * LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = x - n * LN2_HIGH - n * LN2_LOW;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_2e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let p = p * r * r + r + 1.0;
    let exponent = rounded.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    if in_range { p * f32::from_bits(exponent) } else { 0.0 }
}

/// `weights = exp((logit - max) / temperature)`, for each of `logits`.
#[inline(always)]
pub(super) fn weigh(
    logits: impl ExactSizeIterator<Item = f32>,
    max: f32,
    temperature: f32,
    weights: &mut Vec<f32>,
) {
    weights.resize(logits.len(), 0.0);
    vectorised(
        #[inline(always)]
        || {
            for (weight, logit) in weights.iter_mut().zip(logits) {
                *weight = exp((logit - max) / temperature);
            }
        },
    );
}

/// Sum of `exp(logit - max)` over `logits`, shape `[vocab]`.
pub(super) fn exp_sum(logits: &[f32], max: f32) -> f64 {
    vectorised(
        #[inline(always)]
        || {
            let mut sum = 0.0;
            // Lanes in f32 over a few hundred terms each, then f64: exact to about 1e-6.
            for part in logits.chunks(4096) {
                sum += exp_sum_part(part, max);
            }
            sum
        },
    )
}

#[inline(always)]
fn exp_sum_part(logits: &[f32], max: f32) -> f64 {
    let mut lane = [0f32; LANE];
    let (chunks, rest) = logits.as_chunks::<LANE>();
    for chunk in chunks {
        for (sum, &logit) in lane.iter_mut().zip(chunk) {
            *sum += exp(logit - max);
        }
    }
    let rest: f64 = rest.iter().map(|&logit| f64::from(exp(logit - max))).sum();
    lane.iter().map(|&sum| f64::from(sum)).sum::<f64>() + rest
}
