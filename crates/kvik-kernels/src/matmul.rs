//! Matrix products: which tiles and rows a task computes, and with which kernel.
//!
//! `out[n, rows] = x[n, cols] · weightsᵀ`. Work is cut by tiles and by rows of `x`, never along the
//! columns, so the value of an output does not depend on the cut.

mod dispatch;
mod formats;
mod kernel;
#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::activations::{Activations, WIDE};
use crate::matrix::Matrix;
use crate::{Isa, Pool};

/// Bytes of inputs of one task when there are many rows: they stay in the second-level cache.
const TASK_INPUT_BYTES: usize = 512 << 10;

/// Tasks a thread gets of one call, so that a slow core does not hold up the others.
const TASKS_PER_THREAD: usize = 4;

/// Multiplies the rows of `x` by `weights`: `out` is `[n, rows]`.
///
/// # Panics
/// Unless `x` was set for `weights` and `out` has that shape.
pub fn matmul(pool: &Pool, weights: &Matrix, x: &Activations, out: &mut [f32]) {
    matmul_many(pool, &mut [(weights, out)], x);
}

/// Several products of the same inputs (query, key and value; gate and up) in one round of the pool.
///
/// # Panics
/// As [`matmul`], for each job.
pub fn matmul_many(pool: &Pool, jobs: &mut [(&Matrix, &mut [f32])], x: &Activations) {
    matmul_with(Isa::current(), pool, jobs, x);
}

/// The same with a chosen family of kernels, which must be one of `Isa::available()`.
pub(crate) fn matmul_with(isa: Isa, pool: &Pool, jobs: &mut [(&Matrix, &mut [f32])], x: &Activations) {
    debug_assert!(Isa::available().contains(&isa));
    for (weights, out) in jobs.iter() {
        assert_eq!(weights.cols(), x.cols(), "columns of weights and inputs");
        assert_eq!(out.len(), weights.rows() * x.rows(), "{} rows for {} inputs", weights.rows(), x.rows());
    }
    let tiles: usize = jobs.iter().map(|(weights, _)| weights.tiles()).sum();
    let task_rows = task_rows(x, jobs.iter().any(|(weights, _)| weights.weight_type().codes().is_none()));
    let row_parts = x.rows().div_ceil(task_rows);
    if row_parts == 0 {
        return;
    }
    let tile_parts = (pool.threads() * TASKS_PER_THREAD).div_ceil(row_parts).min(tiles);
    let jobs: Vec<Job> =
        jobs.iter_mut().map(|(weights, out)| Job { weights, out: out.as_mut_ptr() }).collect();
    pool.run(tile_parts * row_parts, &|task| {
        let (part, rows) = (task / row_parts, task % row_parts * task_rows);
        let span = tiles * part / tile_parts..tiles * (part + 1) / tile_parts;
        // SAFETY: `isa` is available; the forms are checked when they are taken out of `x`; tasks differ
        // in their tiles or their rows.
        unsafe { run_span(isa, &jobs, span, x, rows..x.rows().min(rows + task_rows)) };
    });
}

/// Rows of the inputs that one task takes: whole panels.
fn task_rows(x: &Activations, floats: bool) -> usize {
    let row_bytes = x.cols() * if floats { 4 } else { 1 };
    (TASK_INPUT_BYTES / row_bytes / WIDE).max(1) * WIDE
}

/// One product of a call.
struct Job<'a> {
    weights: &'a Matrix,
    /// `[n, rows]`; tasks write disjoint parts of it, in pieces of a row.
    out: *mut f32,
}

// SAFETY: `out` stands for a `&mut [f32]` whose parts are handed to one task each.
unsafe impl Sync for Job<'_> {}

/// Computes tiles `span`, counted through all jobs, for the inputs `rows`.
///
/// # Safety
/// The machine has `isa`, `x` has the forms of all weights, and the outputs belong to the caller.
unsafe fn run_span(isa: Isa, jobs: &[Job], span: Range<usize>, x: &Activations, rows: Range<usize>) {
    let mut first = 0;
    for job in jobs {
        let tiles = job.weights.tiles();
        let of_job = span.start.max(first)..span.end.min(first + tiles);
        if !of_job.is_empty() {
            let kernel = dispatch::kernel(isa, job.weights.weight_type());
            // SAFETY: the kernel is that of the type; the rest is the caller's promise.
            unsafe { kernel(job, of_job.start - first..of_job.end - first, x, rows.clone()) };
        }
        first += tiles;
    }
}
