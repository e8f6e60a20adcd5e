//! Log-probabilities of the model's unmodified logits.

use kvik_cache::Token;

use super::Scratch;
use super::select;

/// Log-probability of `token` and of the `count` likeliest tokens of `logits`, shape `[vocab]`.
pub fn logprobs(
    logits: &[f32],
    token: Token,
    count: usize,
    scratch: &mut Scratch,
) -> (f32, Vec<(Token, f32)>) {
    let norm = norm(logits);
    let logprob = |logit: f32| (f64::from(logit) - norm) as f32;
    select::top(logits, count, &mut scratch.candidates);
    let top = scratch.candidates.iter().map(|c| (c.token, logprob(c.logit))).collect();
    (logprob(logit(logits, token)), top)
}

/// Log-probability of `token` under `logits`, shape `[vocab]`.
pub fn logprob(logits: &[f32], token: Token) -> f64 {
    f64::from(logit(logits, token)) - norm(logits)
}

/// Logarithm of the sum of the exponentials.
fn norm(logits: &[f32]) -> f64 {
    let max = select::largest(logits);
    f64::from(max) + select::exp_sum(logits, max).ln()
}

fn logit(logits: &[f32], token: Token) -> f32 {
    logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY)
}
