//! The time step of a row, and the decay of a state after it.
//!
//! The numbers are few and enter an exponential that is applied repeatedly: they are computed in f64 and
//! rounded once.

use crate::Pool;

/// Number of elements below which waking other threads costs more than it saves.
const PARALLEL_MIN: usize = 1024;
/// Rows per task.
const ROWS: usize = 8;

/// `x = ln(1 + exp(x + bias))`, of `x` `[n, heads]` and `bias` `[heads]`.
///
/// # Panics
/// If a shape does not fit.
pub fn softplus(pool: &Pool, x: &mut [f32], bias: &[f32]) {
    let softplus = |x: f32, bias: f32| {
        let x = f64::from(x) + f64::from(bias);
        (x.max(0.0) + (-x.abs()).exp().ln_1p()) as f32
    };
    by_head(pool, x, bias, softplus);
}

/// `x = exp(x factor)`, of `x` `[n, heads]` and `factors` `[heads]`.
///
/// # Panics
/// If a shape does not fit.
pub fn decays(pool: &Pool, x: &mut [f32], factors: &[f32]) {
    by_head(pool, x, factors, |x, factor| (f64::from(x) * f64::from(factor)).exp() as f32);
}

fn by_head(pool: &Pool, x: &mut [f32], of_heads: &[f32], f: impl Fn(f32, f32) -> f32 + Sync) {
    let heads = of_heads.len();
    assert!(heads > 0 && x.len().is_multiple_of(heads), "x is [n, {heads}]");
    let rows = |_: usize, rows: &mut [f32]| {
        for row in rows.chunks_exact_mut(heads) {
            row.iter_mut().zip(of_heads).for_each(|(x, &of_head)| *x = f(*x, of_head));
        }
    };
    if x.len() < PARALLEL_MIN { rows(0, x) } else { pool.run_chunks(x, ROWS * heads, rows) }
}
