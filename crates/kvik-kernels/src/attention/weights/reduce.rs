//! Reduction of the weights of rows to one number per stored position.

use std::ops::Range;

use super::AttnWeights;
use super::kernel::{ReduceCall, WeightKernels};
use super::variants;
use crate::f32x16::{F32x16, LANES};
use crate::scalar::f32x16::Scalar;
use crate::threads::Disjoint;
use crate::{Isa, Pool};

/// A reduction of the weights of rows; `w` is the mean weight over the query heads of a KV head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum WeightReduce {
    /// The sum of `w`.
    Sum,
    /// The sum of `w`, multiplied by this factor at each further row.
    Decayed(f32),
    /// The number of rows in which `w` exceeds 1 / stored positions that the row sees.
    Above,
    /// The maximum weight of any query head of the group.
    Max,
}

/// Positions per task; a multiple of 16, and few enough for their numbers to stay in the first-level cache while
/// all rows pass over them.
const TASK_POSITIONS: usize = 4096;
/// Number of weights below which waking other threads costs more than it saves.
const PARALLEL_MIN: usize = 64 * 1024;

impl AttnWeights {
    /// Reduces the weights of `rows` of the batch, which belong to one sequence and were watched, into `into`.
    ///
    /// * `among`: ascending ranges of stored positions. The weights of each row and query head are divided by
    ///   their sum over these, and other positions stay as they are; if empty, all positions count, undivided
    /// * `into`: `[kv_heads]` of `[stored positions]`, reduced from the sequence's earlier rows; extended with 0
    ///   to the positions that the rows see
    ///
    /// # Panics
    /// If a shape does not fit, a row was not watched, rows belong to several sequences, or ranges do not ascend.
    pub fn reduce(
        &self,
        pool: &Pool,
        rows: Range<usize>,
        reduce: WeightReduce,
        among: &[Range<usize>],
        into: &mut [Vec<f32>],
    ) {
        self.reduce_with(Isa::current(), pool, rows, reduce, among, into);
    }

    /// [`AttnWeights::reduce`] with the kernels of `isa`, which the machine must have.
    pub(in crate::attention) fn reduce_with(
        &self,
        isa: Isa,
        pool: &Pool,
        rows: Range<usize>,
        reduce: WeightReduce,
        among: &[Range<usize>],
        into: &mut [Vec<f32>],
    ) {
        let rows = self.watched(rows);
        let one_sequence = self.rows[rows.clone()].windows(2).all(|pair| pair[0].seq == pair[1].seq);
        assert!(one_sequence, "rows of one sequence");
        assert!(into.len() == self.kv_heads, "into is [{}]", self.kv_heads);
        assert!(among.is_sorted_by(|a, b| a.end <= b.start), "ranges ascend: {among:?}");
        let longest = self.grow(rows.clone(), into);
        let kernels = variants::kernels_of(isa);
        let everything = 0..usize::MAX;
        let reduction = Reduction {
            weights: self,
            kernels,
            rows: rows.clone(),
            reduce,
            divisors: &self.divisors(kernels, pool, rows.clone(), among),
            among: if among.is_empty() { std::slice::from_ref(&everything) } else { among },
            into: &into.iter_mut().map(|into| Disjoint::new(into)).collect::<Vec<_>>(),
        };
        let tasks = longest.div_ceil(TASK_POSITIONS) * self.kv_heads;
        let run = |task: usize| {
            let first = task / self.kv_heads * TASK_POSITIONS;
            reduction.positions(task % self.kv_heads, first);
        };
        run_tasks(pool, tasks, rows.len() * self.heads * longest, &run);
    }

    /// Extends `into` to the positions that `rows` see; returns the length of the longest.
    fn grow(&self, rows: Range<usize>, into: &mut [Vec<f32>]) -> usize {
        let mut longest = 0;
        for (kv_head, into) in into.iter_mut().enumerate() {
            let seen = rows.clone().map(|row| self.stored[row * self.kv_heads + kv_head]).max().unwrap_or(0);
            into.resize(into.len().max(seen), 0.0);
            longest = longest.max(seen);
        }
        longest
    }

    /// The divisors of the weights of each row and query head, `[rows, heads]`.
    ///
    /// Lane `i` of a sum adds positions `i, i + 16, ..` of all ranges, then comes the tree of [`F32x16::sum`].
    fn divisors(
        &self,
        kernels: WeightKernels,
        pool: &Pool,
        rows: Range<usize>,
        among: &[Range<usize>],
    ) -> Vec<f32> {
        let mut divisors = vec![1.0; rows.len() * self.heads];
        if among.is_empty() {
            return divisors;
        }
        let group = self.heads / self.kv_heads;
        let sum_of = |index: usize, head: usize| {
            let row = self.of(rows.start + index, head / group);
            let mut sums = [0.0; LANES];
            for range in among.iter().filter(|range| range.start < row.end) {
                // SAFETY: the kernels are those of the machine.
                unsafe {
                    (kernels.sum)(row, head % group, range.start, range.end.min(row.end), &mut sums);
                }
            }
            // SAFETY: scalar lanes exist on every machine.
            unsafe { Scalar::load(sums.as_ptr()) }.sum()
        };
        let divisors_of = Disjoint::new(&mut divisors);
        let work = rows.len() * self.heads * among.iter().map(Range::len).sum::<usize>();
        run_tasks(pool, rows.len() * self.heads, work, &|task| {
            let sum = sum_of(task / self.heads, task % self.heads);
            // SAFETY: each task has its own element.
            // A row with no weight on these positions gives them 0, not 0 / 0.
            unsafe { divisors_of.range(task, 1)[0] = if sum > 0.0 { sum } else { f32::INFINITY } };
        });
        divisors
    }
}

/// Runs tasks in parallel if there is more work than waking threads costs.
fn run_tasks(pool: &Pool, tasks: usize, work: usize, run: &(dyn Fn(usize) + Sync)) {
    if work < PARALLEL_MIN {
        (0..tasks).for_each(run);
    } else {
        pool.run(tasks, run);
    }
}

/// A call of [`AttnWeights::reduce`].
struct Reduction<'a> {
    weights: &'a AttnWeights,
    kernels: WeightKernels,
    /// Indices in [`AttnWeights::rows`].
    rows: Range<usize>,
    reduce: WeightReduce,
    /// `[rows, heads]`
    divisors: &'a [f32],
    among: &'a [Range<usize>],
    /// `[kv_heads]`
    into: &'a [Disjoint<'a, f32>],
}

impl Reduction<'_> {
    /// Reduces all rows, for the positions of one task of a KV head.
    fn positions(&self, kv_head: usize, first: usize) {
        let group = self.weights.heads / self.weights.kv_heads;
        for (index, row) in self.rows.clone().enumerate() {
            let row = self.weights.of(row, kv_head);
            let last = row.end.min(first + TASK_POSITIONS);
            if last <= first {
                continue;
            }
            // SAFETY: each task has its own positions of its head.
            let acc = unsafe { self.into[kv_head].range(first, last - first) };
            let divisors = &self.divisors[index * self.weights.heads + kv_head * group..][..group];
            for range in self.among {
                let (start, end) = (range.start.max(first), range.end.min(last));
                if start < end {
                    let call = ReduceCall { row, reduce: self.reduce, divisors, start, end };
                    // SAFETY: the kernels are those of the machine.
                    unsafe { (self.kernels.reduce)(&call, first, acc) };
                }
            }
        }
    }
}
