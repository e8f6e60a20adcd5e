//! Norms of rows, and similarities of their directions.
//!
//! The direction of a row is the row divided by its norm; norms are at least [`NORM_MIN`], so that a row of zeros
//! has no direction and similarity 0.

use std::ops::Range;

use super::kernel::FactsKernels;
use super::run_tasks;
use super::variants::kernels_of;
use crate::kv::StoredVectors;
use crate::threads::Disjoint;
use crate::{Isa, Pool};

/// Vectors of one length, read in order: stored vectors need not be contiguous in memory.
pub trait Rows: Sync {
    /// The length of the vectors.
    fn dim(&self) -> usize;

    /// Passes rows `range` to `with`, in order.
    ///
    /// # Panics
    /// If there are fewer rows.
    fn each(&self, range: Range<usize>, with: &mut dyn FnMut(&[f32]));
}

impl Rows for StoredVectors<'_> {
    fn dim(&self) -> usize {
        self.dim()
    }

    fn each(&self, range: Range<usize>, with: &mut dyn FnMut(&[f32])) {
        self.each(range, with);
    }
}

/// Rows per task, and per partial sum of directions: part of the arithmetic.
const PIECE: usize = 256;

const NORM_MIN: f32 = 1e-12;

/// Euclidean norm of each row.
///
/// * `rows`: at least `n`, of which the first are used
/// * `out`: `[n]`
///
/// # Panics
/// If there are fewer rows.
pub fn row_norms(pool: &Pool, rows: &dyn Rows, out: &mut [f32]) {
    RowFacts::new(Isa::current(), pool, rows).norms(out);
}

/// Cosine similarity of each row to the mean of all rows' directions. KeyDiff (arXiv 2504.15364, section 3) drops
/// the keys with the largest first, since keys similar to all others carry the least information.
///
/// * `rows`: at least `n`, of which the first are used
/// * `out`: `[n]`
///
/// # Panics
/// If there are fewer rows.
pub fn likeness(pool: &Pool, rows: &dyn Rows, out: &mut [f32]) {
    RowFacts::new(Isa::current(), pool, rows).likeness(out);
}

/// Rows, with the kernels and threads that process them.
#[derive(Clone, Copy)]
pub(super) struct RowFacts<'a> {
    kernels: FactsKernels,
    pool: &'a Pool,
    rows: &'a dyn Rows,
}

impl<'a> RowFacts<'a> {
    pub(super) fn new(isa: Isa, pool: &'a Pool, rows: &'a dyn Rows) -> RowFacts<'a> {
        RowFacts { kernels: kernels_of(isa), pool, rows }
    }

    pub(super) fn norms(&self, out: &mut [f32]) {
        self.each(out, |row, out| *out = self.norm(row));
    }

    pub(super) fn likeness(&self, out: &mut [f32]) {
        let sum = self.sum_of_directions(out);
        let of_sum = 1.0 / self.norm(&sum).max(NORM_MIN);
        self.each(out, |row, out| *out = self.dot(row, &sum) * *out * of_sum);
    }

    /// The sum of the rows' directions: the rows of a piece in order, then the pieces. Writes the factor that
    /// normalises each row to `factors`.
    fn sum_of_directions(&self, factors: &mut [f32]) -> Vec<f32> {
        let dim = self.rows.dim();
        let mut sums = vec![0.0; factors.len().div_ceil(PIECE) * dim];
        let disjoint = Disjoint::new(&mut sums);
        self.pieces(factors, |piece, factors| {
            // SAFETY: a task has the sum of its piece.
            let sum = unsafe { disjoint.range(piece * dim, dim) };
            self.each_of(piece, factors, |row, factor| {
                *factor = 1.0 / self.norm(row).max(NORM_MIN);
                // SAFETY: the kernels are those of the machine.
                unsafe { (self.kernels.add_scaled)(sum, row, *factor) };
            });
        });
        let mut total = vec![0.0; dim];
        // SAFETY: as above.
        sums.chunks(dim).for_each(|sum| unsafe { (self.kernels.add_scaled)(&mut total, sum, 1.0) });
        total
    }

    /// Calls `fact` with every row and its element of `out`.
    fn each(&self, out: &mut [f32], fact: impl Fn(&[f32], &mut f32) + Sync) {
        self.pieces(out, |piece, out| self.each_of(piece, out, &fact));
    }

    /// Calls `fact` with the rows of one piece, each with its element of `out`.
    fn each_of(&self, piece: usize, out: &mut [f32], mut fact: impl FnMut(&[f32], &mut f32)) {
        let first = piece * PIECE;
        let rows = first..first + out.len();
        let mut out = out.iter_mut();
        self.rows.each(rows, &mut |row| out.next().into_iter().for_each(|out| fact(row, out)));
    }

    /// Runs a task for each piece of rows, with its part of `out`.
    fn pieces(&self, out: &mut [f32], run: impl Fn(usize, &mut [f32]) + Sync) {
        let (rows, numbers) = (out.len(), out.len() * self.rows.dim());
        let disjoint = Disjoint::new(out);
        run_tasks(self.pool, rows.div_ceil(PIECE), numbers, &|piece| {
            let first = piece * PIECE;
            // SAFETY: a task has the rows of its piece.
            run(piece, unsafe { disjoint.range(first, PIECE.min(rows - first)) });
        });
    }

    fn norm(&self, row: &[f32]) -> f32 {
        self.dot(row, row).sqrt()
    }

    fn dot(&self, row: &[f32], other: &[f32]) -> f32 {
        // SAFETY: the kernels are those of the machine.
        unsafe { (self.kernels.dot)(row, other) }
    }
}
