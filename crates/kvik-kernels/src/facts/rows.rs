//! Norms of rows, and how their directions relate.
//!
//! The direction of a row is the row over its norm; norms are taken as at least [`NORM_MIN`], so that a row of
//! zeros has no direction and is like nothing.

use super::kernel::FactsKernels;
use super::run_tasks;
use super::variants::kernels_of;
use crate::threads::Disjoint;
use crate::{Isa, Pool};

/// Rows of a task, and of a piece of the sum of directions: part of the arithmetic.
const PIECE: usize = 256;

const NORM_MIN: f32 = 1e-12;

/// Euclidean norm of each row.
///
/// * `x`: `[n, dim]`
/// * `out`: `[n]`
///
/// # Panics
/// When a shape does not fit.
pub fn row_norms(pool: &Pool, x: &[f32], dim: usize, out: &mut [f32]) {
    Rows::new(Isa::current(), pool, x, dim).norms(out);
}

/// Cosine of each row and the mean of all rows' directions: what KeyDiff (arXiv 2504.15364, section 3) drops first
/// where it is large, since keys like all others tell least.
///
/// * `x`: `[n, dim]`
/// * `out`: `[n]`
///
/// # Panics
/// When a shape does not fit.
pub fn likeness(pool: &Pool, x: &[f32], dim: usize, out: &mut [f32]) {
    Rows::new(Isa::current(), pool, x, dim).likeness(out);
}

/// Mean cosine of each row and every other row, 0 for a single row: the redundancy of R-KV (arXiv 2505.24133,
/// section 3), without its threshold.
///
/// All cosines of a row together are the product of its direction with the sum of all others', so this takes
/// `n` products and not `n^2`.
///
/// * `x`: `[n, dim]`
/// * `out`: `[n]`
///
/// # Panics
/// When a shape does not fit.
pub fn redundancy(pool: &Pool, x: &[f32], dim: usize, out: &mut [f32]) {
    Rows::new(Isa::current(), pool, x, dim).redundancy(out);
}

/// Rows `[n, dim]`, and the kernels and threads that look at them.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    kernels: FactsKernels,
    pool: &'a Pool,
    x: &'a [f32],
    dim: usize,
}

impl<'a> Rows<'a> {
    pub(super) fn new(isa: Isa, pool: &'a Pool, x: &'a [f32], dim: usize) -> Rows<'a> {
        assert!(dim > 0 && x.len().is_multiple_of(dim), "x is [n, {dim}]");
        Rows { kernels: kernels_of(isa), pool, x, dim }
    }

    pub(super) fn norms(&self, out: &mut [f32]) {
        self.each(out, |row| self.norm(row));
    }

    pub(super) fn likeness(&self, out: &mut [f32]) {
        let sum = self.sum_of_directions();
        let of_sum = 1.0 / self.norm(&sum).max(NORM_MIN);
        self.each(out, |row| self.dot(row, &sum) * self.direction_factor(row) * of_sum);
    }

    pub(super) fn redundancy(&self, out: &mut [f32]) {
        let sum = self.sum_of_directions();
        let others = (self.x.len() / self.dim).saturating_sub(1).max(1) as f32;
        self.each(out, |row| {
            let direction_factor = self.direction_factor(row);
            let with_itself = (self.norm(row) * direction_factor).powi(2);
            (self.dot(row, &sum) * direction_factor - with_itself) / others
        });
    }

    /// The sum of the rows' directions: the rows of a piece one after the other, then the pieces.
    fn sum_of_directions(&self) -> Vec<f32> {
        let pieces = self.x.chunks(PIECE * self.dim);
        let mut sums = vec![0.0; pieces.len() * self.dim];
        let disjoint = Disjoint::new(&mut sums);
        run_tasks(self.pool, pieces.len(), self.x.len(), &|piece| {
            // SAFETY: a task has the sum of its piece.
            let sum = unsafe { disjoint.range(piece * self.dim, self.dim) };
            for row in self.x.chunks(PIECE * self.dim).skip(piece).take(1).flat_map(|x| x.chunks(self.dim)) {
                // SAFETY: the kernels are those of the machine.
                unsafe { (self.kernels.add_scaled)(sum, row, self.direction_factor(row)) };
            }
        });
        let mut total = vec![0.0; self.dim];
        // SAFETY: as above.
        sums.chunks(self.dim).for_each(|sum| unsafe { (self.kernels.add_scaled)(&mut total, sum, 1.0) });
        total
    }

    /// `out[i]` becomes what `fact` is of row `i`.
    fn each(&self, out: &mut [f32], fact: impl Fn(&[f32]) -> f32 + Sync) {
        assert!(out.len() * self.dim == self.x.len(), "out is [n]");
        let disjoint = Disjoint::new(out);
        let rows = self.x.len() / self.dim;
        run_tasks(self.pool, rows.div_ceil(PIECE), self.x.len(), &|piece| {
            let first = piece * PIECE;
            // SAFETY: a task has the rows of its piece.
            let out = unsafe { disjoint.range(first, PIECE.min(rows - first)) };
            for (row, out) in self.x[first * self.dim..].chunks(self.dim).zip(out) {
                *out = fact(row);
            }
        });
    }

    fn norm(&self, row: &[f32]) -> f32 {
        self.dot(row, row).sqrt()
    }

    fn dot(&self, row: &[f32], other: &[f32]) -> f32 {
        // SAFETY: the kernels are those of the machine.
        unsafe { (self.kernels.dot)(row, other) }
    }

    /// The factor that makes a direction of a row.
    fn direction_factor(&self, row: &[f32]) -> f32 {
        1.0 / self.norm(row).max(NORM_MIN)
    }
}
