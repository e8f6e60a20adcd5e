//! Truncation (top-k, top-p, min-p), temperature, and the draw.

use kvik_cache::Token;
use kvik_kernels::vectorised;

use super::nucleus;
use super::select::{self, Candidate};
use crate::api::Sampling;

/// Weights of the whole vocabulary that are summed together.
const PART: usize = 1024;

/// Draws a token from `logits`, shape `[vocab]`, with `unit` in `[0, 1)`.
pub(super) fn draw(
    sampling: &Sampling,
    logits: &[f32],
    unit: f64,
    weights: &mut Vec<f32>,
    candidates: &mut Vec<Candidate>,
) -> Option<Token> {
    let max = select::largest(logits);
    if !max.is_finite() {
        return select::likeliest(logits);
    }
    if truncate(sampling, logits, max, candidates) {
        Some(draw_candidate(candidates, max, sampling.temperature, unit, weights))
    } else {
        draw_any(logits, max, sampling.temperature, unit, weights)
    }
}

/// Fills `candidates` with the tokens that top-k, top-p and min-p keep; `false` if they are all off.
/// There is always at least one candidate, because `max` is finite.
fn truncate(sampling: &Sampling, logits: &[f32], max: f32, candidates: &mut Vec<Candidate>) -> bool {
    let by_count = sampling.top_k > 0 && sampling.top_k < logits.len();
    let by_mass = sampling.top_p < 1.0;
    let by_ratio = sampling.min_p > 0.0;
    let floor = max + sampling.min_p.min(1.0).ln();
    if by_count {
        select::top(logits, sampling.top_k, candidates);
        if by_mass {
            let total = mass(candidates, max);
            nucleus::cut(candidates, max, f64::from(sampling.top_p) * total);
        }
    } else if by_mass {
        nucleus::nucleus(logits, max, sampling.top_p, candidates);
    } else if by_ratio {
        candidates.clear();
        let tokens = logits.iter().enumerate().filter(|(_, logit)| **logit >= floor);
        candidates.extend(tokens.map(|(token, &logit)| Candidate { token: token as Token, logit }));
    }
    if by_ratio {
        candidates.retain(|candidate| candidate.logit >= floor);
    }
    by_count || by_mass || by_ratio
}

fn mass(candidates: &[Candidate], max: f32) -> f64 {
    candidates.iter().map(|&candidate| nucleus::weight(candidate, max)).sum()
}

fn draw_candidate(
    candidates: &[Candidate],
    max: f32,
    temperature: f32,
    unit: f64,
    weights: &mut Vec<f32>,
) -> Token {
    let logits = candidates.iter().map(|candidate| candidate.logit);
    select::weigh(logits, max, temperature, weights);
    let total: f64 = weights.iter().map(|&w| f64::from(w)).sum();
    let index = pick(weights, unit * total).unwrap_or(0);
    candidates[index].token
}

/// Draws from the whole vocabulary, in the order of token ids.
fn draw_any(logits: &[f32], max: f32, temperature: f32, unit: f64, weights: &mut Vec<f32>) -> Option<Token> {
    select::weigh(logits.iter().copied(), max, temperature, weights);
    let masses = part_masses(weights);
    let mut target = unit * masses.iter().sum::<f64>();
    for (index, (part, mass)) in weights.chunks(PART).zip(masses).enumerate() {
        if target < mass {
            return pick(part, target).map(|within| (index * PART + within) as Token);
        }
        target -= mass;
    }
    // Rounding carried the target past the end: take the last possible token.
    weights.iter().rposition(|&w| w > 0.0).map(|token| token as Token)
}

/// The sum of each [`PART`] of `weights`, element after element. An addition waits for the one before it, so several
/// parts are summed beside each other.
fn part_masses(weights: &[f32]) -> Vec<f64> {
    const BESIDE: usize = 8;
    let mut masses = Vec::with_capacity(weights.len().div_ceil(PART));
    let (parts, rest) = weights.as_chunks::<PART>();
    let (groups, single) = parts.as_chunks::<BESIDE>();
    for group in groups {
        masses.extend(vectorised(
            #[inline(always)]
            || {
                let mut sums = [0f64; BESIDE];
                for at in 0..PART {
                    for (sum, part) in sums.iter_mut().zip(group) {
                        *sum += f64::from(part[at]);
                    }
                }
                sums
            },
        ));
    }
    let sum = |part: &[f32]| part.iter().map(|&weight| f64::from(weight)).sum::<f64>();
    masses.extend(single.iter().map(|part| sum(part)));
    masses.extend(rest.chunks(PART).map(sum));
    masses
}

/// The index at which the running sum of `weights` passes `target`.
fn pick(weights: &[f32], mut target: f64) -> Option<usize> {
    for (index, &weight) in weights.iter().enumerate() {
        if target < f64::from(weight) {
            return Some(index);
        }
        target -= f64::from(weight);
    }
    weights.iter().rposition(|&weight| weight > 0.0)
}
