//! Log-probabilities of the model's unmodified logits.

use kvik_cache::Token;

use super::Scratch;
use super::distribution::Distribution;
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

/// Kullback-Leibler divergence of the distribution of `logits` from that of `exact`, in nats; both `[vocab]`.
///
/// The divergence is at least 0, and 0 if the logits have the same bits.
pub fn divergence(exact: &[f32], logits: &[f32]) -> f64 {
    let (exact_norm, norm) = (norm(exact), norm(logits));
    let term = |(&exact, &logit): (&f32, &f32)| {
        let logprob = f64::from(exact) - exact_norm;
        let difference = logprob - (f64::from(logit) - norm);
        // If the exact probability is 0, the limit of the product is 0 too.
        if logprob == f64::NEG_INFINITY { 0.0 } else { logprob.exp() * difference }
    };
    exact.iter().zip(logits).map(term).sum::<f64>().max(0.0)
}

/// Logarithm of the sum of the exponentials.
fn norm(logits: &[f32]) -> f64 {
    let row = Distribution::of(logits);
    f64::from(row.max) + row.mass(1.0).ln()
}

fn logit(logits: &[f32], token: Token) -> f32 {
    logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_is_the_mean_of_the_differences_of_log_probabilities() {
        // Probabilities 1/2, 1/4, 1/4 against 1/4, 1/4, 1/2.
        let [a, b] = [[2.0_f32, 1.0, 1.0], [1.0, 1.0, 2.0]].map(|weights| weights.map(f32::ln));
        let expect = 0.25 * 2.0_f64.ln();
        assert!((divergence(&a, &b) - expect).abs() < 1e-7, "{}", divergence(&a, &b));
        // Adding a constant to logits changes no probability.
        let moved = b.map(|logit| logit + 3.0);
        assert!((divergence(&a, &moved) - expect).abs() < 1e-7);
        assert_eq!(divergence(&a, &a), 0.0);
        assert_eq!(divergence(&[0.0, f32::NEG_INFINITY], &[0.0, f32::NEG_INFINITY]), 0.0);
        assert_eq!(divergence(&[0.0, 0.0], &[0.0, f32::NEG_INFINITY]), f64::INFINITY);
    }
}
