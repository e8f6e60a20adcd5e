//! Matrix products: the tiles and rows that each task computes, and its kernel.
//!
//! `out[n, rows] = x[n, cols] · weightsᵀ`. Work is split by tiles and by rows of `x`, never along the columns, so
//! the value of an output does not depend on the split.

mod activated;
mod dispatch;
mod family;
mod formats;
mod grouped;
mod inner_loop;
mod kernel;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tiled;

use std::ops::Range;

use crate::activations::{Activations, TALL};
use crate::matrix::Matrix;
use crate::outputs::Outputs;
use crate::{Isa, Pool};
pub use activated::{Activated, matmul_activated};
pub use grouped::matmul_grouped;
use kernel::TILES;

/// Input values per task when there are many rows: quantised, they stay in the second-level cache; floats, which
/// take longer to multiply, may come from the third.
const TASK_VALUES: usize = 512 << 10;

/// Tasks per thread and call, so that a slow core does not hold up the others.
const TASKS_PER_THREAD: usize = 4;

/// Products that one round of the pool takes; more take more rounds.
const ROUND_JOBS: usize = 8;

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

/// [`matmul_many`] with a chosen family of kernels, which must be one of `Isa::available()`.
pub(crate) fn matmul_with(isa: Isa, pool: &Pool, jobs: &mut [(&Matrix, &mut [f32])], x: &Activations) {
    debug_assert!(Isa::available().contains(&isa));
    for (weights, out) in jobs.iter() {
        assert_eq!(weights.cols(), x.cols(), "columns of weights and inputs");
        assert_eq!(out.len(), weights.rows() * x.rows(), "{} rows for {} inputs", weights.rows(), x.rows());
    }
    if x.rows() == 0 {
        return;
    }
    for jobs in jobs.chunks_mut(ROUND_JOBS) {
        let mut outs = jobs.iter_mut();
        let jobs = std::array::from_fn(|_| outs.next().map(|(weights, out)| Job::new(weights, out)));
        // SAFETY: `isa` is available, and the outputs are ours and as long as they must be.
        unsafe { run_round(isa, pool, &jobs, x) };
    }
}

/// Computes all jobs in one round of the pool.
///
/// # Safety
/// The machine has `isa`, and the outputs have room for their jobs and no other user.
unsafe fn run_round(isa: Isa, pool: &Pool, jobs: &Round, x: &Activations) {
    let tiles: usize = jobs.iter().flatten().map(|job| job.weights.tiles()).sum();
    let part_rows = part_rows(x.rows(), x.cols());
    let row_parts = x.rows().div_ceil(part_rows);
    let groups = tiles.div_ceil(TILES);
    let tile_parts = (pool.threads() * TASKS_PER_THREAD).div_ceil(row_parts).min(groups);
    let bound = |part| tiles.min(part_start(groups, part, tile_parts) * TILES);
    pool.run(tile_parts * row_parts, &|task| {
        let (part, start) = (task / row_parts, task % row_parts * part_rows);
        let rows = start..x.rows().min(start + part_rows);
        // Assuming that all threads keep pace, this one continues with the task `threads` further on.
        let next_part = tile_parts.min((task + pool.threads()) / row_parts);
        let after = tile_start(jobs, bound(next_part));
        // SAFETY: tasks differ in their tiles or their rows; the rest is the caller's promise.
        unsafe { run_span(isa, jobs, bound(part)..bound(part + 1), after, x, rows) };
    });
}

/// First piece of a part: later parts are smaller, so that the threads finish together, unless there are at least
/// as many parts as `pieces`.
fn part_start(pieces: usize, part: usize, parts: usize) -> usize {
    let left = parts - part;
    if parts >= pieces { part.min(pieces) } else { pieces - (pieces * left * left).div_ceil(parts * parts) }
}

/// Input rows per task: equal parts of whole panels.
fn part_rows(rows: usize, cols: usize) -> usize {
    let parts = rows.div_ceil((TASK_VALUES / cols).max(TALL));
    rows.div_ceil(parts).next_multiple_of(TALL)
}

/// The products of one round.
type Round<'a> = [Option<Job<'a>>; ROUND_JOBS];

/// A product of a call.
struct Job<'a> {
    weights: &'a Matrix,
    /// `[n, rows]`; tasks write disjoint pieces of its rows.
    out: Outputs,
}

impl<'a> Job<'a> {
    /// The product of all inputs, `[n, rows]`.
    fn new(weights: &'a Matrix, out: &mut [f32]) -> Job<'a> {
        Job { weights, out: Outputs::whole(out, weights.rows()) }
    }
}

// SAFETY: `out` represents a `&mut [f32]` of which each task writes a disjoint part.
unsafe impl Sync for Job<'_> {}

/// Start of tile `tile`, counted over all jobs; past the last tile, its end.
fn tile_start(jobs: &Round, mut tile: usize) -> *const u8 {
    let mut end = std::ptr::null();
    for Job { weights, .. } in jobs.iter().flatten() {
        if tile < weights.tiles() {
            return weights.tile(tile).as_ptr();
        }
        tile -= weights.tiles();
        end = weights.tile(weights.tiles() - 1).as_ptr_range().end;
    }
    end
}

/// Computes the tiles `span`, counted over all jobs, for the input rows `rows`; `after` is the start of the tiles
/// that the thread will probably compute next.
///
/// # Safety
/// The machine has `isa`, `x` has the forms of all weights, and the outputs belong to the caller.
unsafe fn run_span(
    isa: Isa,
    jobs: &Round,
    span: Range<usize>,
    after: *const u8,
    x: &Activations,
    rows: Range<usize>,
) {
    let mut first = 0;
    for job in jobs.iter().flatten() {
        let tiles = job.weights.tiles();
        let of_job = span.start.max(first)..span.end.min(first + tiles);
        if !of_job.is_empty() {
            let kernel = dispatch::kernel(isa, job.weights.weight_type());
            let after = if of_job.end < span.end { tile_start(jobs, of_job.end) } else { after };
            // SAFETY: the kernel is that of the type; the rest is the caller's promise.
            unsafe { kernel(job, of_job.start - first..of_job.end - first, after, x, rows.clone()) };
        }
        first += tiles;
    }
}
