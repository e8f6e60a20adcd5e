//! Truncation (top-k, top-p, min-p), temperature, and the draw.
//!
//! Top-p is the smallest set of likeliest tokens whose probability reaches p. It is not computed: a token is
//! drawn, and accepted if the tokens ranked before it have not reached p, which takes one pass over the row. If
//! not, it and all tokens ranked after it are outside, and the next is drawn from those before it. So a token has
//! the probability that it would have with a known set, and a third draw is very rare.

use kvik_cache::Token;
use kvik_kernels::{Weighing, weigh};

use super::Scratch;
use super::distribution::{Among, Distribution, pick};
use super::select::{self, Candidate};
use crate::sampler::Sampling;

/// Draws a token from `logits`, shape `[vocab]`; `units` are random numbers in `[0, 1)`, taken as needed.
pub(super) fn draw(
    sampling: &Sampling,
    logits: &[f32],
    mut units: impl Iterator<Item = f64>,
    scratch: &mut Scratch,
) -> Option<Token> {
    let row = Distribution::of(logits);
    if !row.max.is_finite() {
        return select::likeliest(logits);
    }
    if cuts_by_count(sampling, logits) {
        return draw_candidate(sampling, row, units.next()?, scratch);
    }
    let rate = rate(sampling.temperature);
    let mut among = Among::at_least(floor(sampling, row.max));
    loop {
        row.weigh(among, rate, &mut scratch.masses);
        let token = row.pick(among, rate, &scratch.masses, units.next()?)?;
        if sampling.top_p >= 1.0 || row.is_in_nucleus(token, sampling.top_p, &mut scratch.masses) {
            return Some(token);
        }
        among = Among::ahead_of(token, logits[token as usize]);
    }
}

/// The first token that `allows` accepts, of one draw per unit. It has its probability among all allowed tokens,
/// if only the temperature shapes the distribution.
///
/// # Errors
/// Returns the errors of `allows`.
pub(super) fn draw_allowed<E>(
    temperature: f32,
    logits: &[f32],
    units: impl Iterator<Item = f64>,
    scratch: &mut Scratch,
    mut allows: impl FnMut(Token) -> Result<bool, E>,
) -> Result<Option<Token>, E> {
    let row = Distribution::of(logits);
    if !row.max.is_finite() {
        return Ok(None);
    }
    let (rate, among) = (rate(temperature), Among::at_least(f32::NEG_INFINITY));
    row.weigh(among, rate, &mut scratch.masses);
    for unit in units {
        let Some(token) = row.pick(among, rate, &scratch.masses, unit) else { break };
        if allows(token)? {
            return Ok(Some(token));
        }
    }
    Ok(None)
}

/// Whether only the temperature shapes the distribution.
pub(super) fn is_plain(sampling: &Sampling, logits: &[f32]) -> bool {
    !cuts_by_count(sampling, logits) && sampling.top_p >= 1.0 && sampling.min_p <= 0.0
}

fn cuts_by_count(sampling: &Sampling, logits: &[f32]) -> bool {
    sampling.top_k > 0 && sampling.top_k < logits.len()
}

/// The minimum logit that min-p keeps, in a row whose maximum is `max`.
fn floor(sampling: &Sampling, max: f32) -> f32 {
    if sampling.min_p > 0.0 { max + sampling.min_p.min(1.0).ln() } else { f32::NEG_INFINITY }
}

/// The reciprocal of a temperature, clamped for temperatures near zero or infinity.
fn rate(temperature: f32) -> f32 {
    temperature.recip().clamp(f32::MIN_POSITIVE, f32::MAX)
}

/// Draws from the `top_k` likeliest tokens, truncated further by top-p and min-p. The first of them always stays.
fn draw_candidate(
    sampling: &Sampling,
    row: Distribution<'_>,
    unit: f64,
    scratch: &mut Scratch,
) -> Option<Token> {
    let Scratch { candidates, weights, .. } = scratch;
    select::top(row.logits, sampling.top_k, candidates);
    if sampling.top_p < 1.0 {
        let total = weigh_candidates(candidates, row.max, 1.0, weights);
        cut(candidates, weights, f64::from(sampling.top_p) * total);
    }
    let floor = floor(sampling, row.max);
    candidates.retain(|candidate| candidate.logit >= floor);
    let total = weigh_candidates(candidates, row.max, rate(sampling.temperature), weights);
    let (index, _) = pick(weights.iter().map(|&weight| f64::from(weight)), unit * total)?;
    Some(candidates[index].token)
}

/// Fills `weights` with the weights of candidates at `rate`; returns the sum.
fn weigh_candidates(candidates: &[Candidate], max: f32, rate: f32, weights: &mut Vec<f32>) -> f64 {
    weights.clear();
    weights.extend(candidates.iter().map(|candidate| candidate.logit));
    weigh(weights, Weighing { origin: max, rate });
    weights.iter().map(|&weight| f64::from(weight)).sum()
}

/// Truncates sorted candidates where their weights reach `wanted`; keeps at least the first.
fn cut(candidates: &mut Vec<Candidate>, weights: &[f32], wanted: f64) {
    let mut reached = 0.0;
    let last = weights.iter().position(|&weight| {
        reached += f64::from(weight);
        reached >= wanted
    });
    candidates.truncate(last.map_or(candidates.len(), |last| last + 1));
}
