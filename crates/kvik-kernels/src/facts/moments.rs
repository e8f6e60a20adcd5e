//! First and second moments of queries.

use super::kernel::half_len;
use super::run_tasks;
use super::variants::kernels_of;
use crate::f32x16::LANES;
use crate::kv::HEAD_DIM_MAX;
use crate::threads::Disjoint;
use crate::{Isa, Pool};

/// Elements of a packed piece of rows: half of a first-level cache.
const PIECE: usize = 32 * 256;

/// The sum and the second moments of a layer's queries before rotation, head by head.
///
/// Rows are added one by one, so their division into calls does not matter. Takes about half of `heads * dim^2`
/// floats.
#[derive(Debug, Clone)]
pub struct QueryMoments {
    dim: usize,
    /// `dim` rounded up to whole lanes; the padding is 0.
    lanes: usize,
    count: usize,
    /// `[heads, lanes]`
    sums: Vec<f32>,
    /// `[heads]` of the stored half of the sums of `q[i] q[j]`, see [`kernel`](super::kernel).
    moments: Vec<f32>,
}

impl QueryMoments {
    /// The moments of no queries, for `heads` query heads of length `dim`.
    ///
    /// # Panics
    /// If `dim` is 0 or longer than a head may be.
    pub fn new(heads: usize, dim: usize) -> QueryMoments {
        assert!((1..=HEAD_DIM_MAX).contains(&dim), "queries of {dim}");
        let lanes = dim.next_multiple_of(LANES);
        let (sums, moments) = (vec![0.0; heads * lanes], vec![0.0; heads * half_len(lanes)]);
        QueryMoments { dim, lanes, count: 0, sums, moments }
    }

    /// Adds the queries of `n` rows, `[n, heads, dim]`.
    ///
    /// # Panics
    /// If the shape does not fit.
    pub fn add(&mut self, pool: &Pool, q: &[f32]) {
        self.add_with(Isa::current(), pool, q);
    }

    pub(super) fn add_with(&mut self, isa: Isa, pool: &Pool, q: &[f32]) {
        let (dim, lanes, heads) = (self.dim, self.lanes, self.heads());
        let row = heads * dim;
        assert!(q.len().is_multiple_of(row.max(1)), "q is [n, {heads}, {dim}]");
        if q.is_empty() {
            return;
        }
        let kernels = kernels_of(isa);
        self.count += q.len() / row;
        let (sums, moments) = (Disjoint::new(&mut self.sums), Disjoint::new(&mut self.moments));
        run_tasks(pool, heads, q.len() * lanes / 2, &|head| {
            // SAFETY: a task has its head.
            let (sum, moments) = unsafe {
                (sums.range(head * lanes, lanes), moments.range(head * half_len(lanes), half_len(lanes)))
            };
            let mut packed = [0.0; PIECE];
            let rows = PIECE / lanes;
            for piece in q.chunks(rows * row) {
                for (from, to) in piece.chunks_exact(row).zip(packed.chunks_exact_mut(lanes)) {
                    to[..dim].copy_from_slice(&from[head * dim..][..dim]);
                }
                // SAFETY: the kernels are those of the machine.
                unsafe { (kernels.add_moments)(&packed[..piece.len() / row * lanes], sum, moments) };
            }
        });
    }

    /// The number of rows added so far.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The number of query heads.
    pub fn heads(&self) -> usize {
        self.sums.len() / self.lanes
    }

    /// The length of a query.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// `dim` rounded up to whole lanes.
    pub(super) fn lanes(&self) -> usize {
        self.lanes
    }

    /// The sum `[lanes]` and the stored half of the second moments of a head.
    pub(super) fn of(&self, head: usize) -> (&[f32], &[f32]) {
        let half = half_len(self.lanes);
        (&self.sums[head * self.lanes..][..self.lanes], &self.moments[head * half..][..half])
    }
}
