//! The small operations between matrix products: norms, rotation, activation, probabilities, sums; and the
//! operations of sampling on logits.
//!
//! They run for every layer of every token: nothing is allocated, and the pool is used only if there is more work
//! than waking it costs. Results of a row depend on that row alone.

use crate::{Isa, Pool};
use kernel::OpsKernels;
use variants::kernels_of;

pub(crate) mod activation;
pub(crate) mod elements;
pub(crate) mod gating;
pub(crate) mod kernel;
pub(crate) mod logits;
mod rope;
mod variants;

pub use activation::{Activation, activate};
pub use gating::{sigmoid, softmax};
pub use logits::{Mass, Weighing, largest, mass, weigh};
pub use rope::{RopeStyle, RopeTable, rope, rope_back};

/// Number of elements below which waking other threads costs more than it saves.
const PARALLEL_MIN: usize = 32 * 1024;
/// Elements per task of elementwise operations.
const CHUNK: usize = 8 * 1024;

/// Root-mean-square norm of each row: `out = x / sqrt(mean(x^2) + eps) * weight`.
///
/// * `x`, `out`: `[n, d]`
/// * `weight`: `[d]`
///
/// For norms of single heads, rows are of `head_dim`.
///
/// # Panics
/// If a shape does not fit.
pub fn rms_norm(pool: &Pool, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let d = weight.len();
    assert!(x.len() == out.len() && d > 0 && x.len().is_multiple_of(d), "x and out are [n, {d}]");
    let kernels = kernels();
    by_rows(pool, out, d, |start, rows| {
        rows.copy_from_slice(&x[start..start + rows.len()]);
        norm_groups(kernels, rows, weight, d, eps);
    });
}

/// [`rms_norm`] in place of `x`, `[n, d]`.
///
/// # Panics
/// If a shape does not fit.
pub fn rms_norm_in_place(pool: &Pool, x: &mut [f32], weight: &[f32], eps: f32) {
    rms_norm_with(kernels(), pool, x, weight, weight.len(), eps);
}

/// [`rms_norm_in_place`] of each group of `group` elements separately: `x` is `[n, d]`, `weight` `[d]`.
///
/// # Panics
/// If a shape does not fit.
pub fn rms_norm_groups(pool: &Pool, x: &mut [f32], weight: &[f32], group: usize, eps: f32) {
    rms_norm_with(kernels(), pool, x, weight, group, eps);
}

fn rms_norm_with(kernels: OpsKernels, pool: &Pool, x: &mut [f32], weight: &[f32], group: usize, eps: f32) {
    let d = weight.len();
    assert!(d > 0 && x.len().is_multiple_of(d), "x is [n, {d}]");
    assert!(group > 0 && d.is_multiple_of(group), "groups of {group} in {d}");
    by_rows(pool, x, d, |_, rows| norm_groups(kernels, rows, weight, group, eps));
}

/// Normalises groups, on the calling thread.
fn norm_groups(kernels: OpsKernels, rows: &mut [f32], weight: &[f32], group: usize, eps: f32) {
    for (x, weight) in rows.chunks_exact_mut(group).zip(weight.chunks_exact(group).cycle()) {
        // SAFETY: the kernels are those of the machine.
        unsafe {
            let mean = (kernels.sum_squares)(x) / group as f32;
            (kernels.scale)(x, 1.0 / (mean + eps).sqrt(), weight);
        }
    }
}

/// The sum of squares.
pub(crate) fn squares(x: &[f32]) -> f32 {
    // SAFETY: the kernels are those of the machine.
    unsafe { (kernels().sum_squares)(x) }
}

/// `x = x * y`
///
/// # Panics
/// If the lengths differ.
pub fn product(pool: &Pool, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len());
    by_rows(pool, x, 1, |start, x| x.iter_mut().zip(&y[start..]).for_each(|(x, y)| *x *= y));
}

/// `x = x + y`
///
/// # Panics
/// If the lengths differ.
pub fn add(pool: &Pool, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len());
    let kernels = kernels();
    by_rows(pool, x, 1, |start, x| {
        // SAFETY: the kernels are those of the machine.
        unsafe { (kernels.add)(x, &y[start..start + x.len()]) };
    });
}

/// `x = factor * x`; a factor of 1 is skipped.
pub fn multiply(pool: &Pool, x: &mut [f32], factor: f32) {
    if factor != 1.0 {
        by_rows(pool, x, 1, |_, x| x.iter_mut().for_each(|x| *x *= factor));
    }
}

/// Soft cap of every element: `x = cap * tanh(x / cap)`.
pub fn soft_cap(pool: &Pool, x: &mut [f32], cap: f32) {
    let kernels = kernels();
    by_rows(pool, x, 1, |_, x| {
        // SAFETY: the kernels are those of the machine.
        unsafe { (kernels.soft_cap)(x, cap) };
    });
}

/// Adds `bias` `[d]` to each row of `x` `[n, d]`.
///
/// # Panics
/// If a shape does not fit.
pub fn add_bias(pool: &Pool, x: &mut [f32], bias: &[f32]) {
    let d = bias.len();
    assert!(d > 0 && x.len().is_multiple_of(d), "x is [n, {d}]");
    let kernels = kernels();
    by_rows(pool, x, d, |_, rows| {
        for row in rows.chunks_exact_mut(d) {
            // SAFETY: the kernels are those of the machine.
            unsafe { (kernels.add)(row, bias) };
        }
    });
}

/// Calls `work(start, rows)` for pieces of whole rows of `x` `[n, d]`, in parallel if that is faster.
fn by_rows(pool: &Pool, x: &mut [f32], d: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
    if x.len() < PARALLEL_MIN {
        return work(0, x);
    }
    let chunk = CHUNK.next_multiple_of(d);
    pool.run_chunks(x, chunk, |i, rows| work(i * chunk, rows));
}

/// The kernels of this machine.
fn kernels() -> OpsKernels {
    kernels_of(Isa::current())
}

#[cfg(test)]
mod tests;
