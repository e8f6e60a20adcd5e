//! The attention weights of watched rows, and their reduction per stored position.
//!
//! A call of attention computes p and the maximum of each split anyway; for a watched row it records them, and
//! when the row's last split is folded, the maxima become factors: a weight is p times the factor of its split,
//! and 0 at invisible positions. Weights are reduced over rows in order, so the result does not depend on how
//! rows were cut into calls.

use std::ops::Range;

use super::kernel::Softmax;
use super::{Attention, SPLIT};
use crate::f32x16::LANES;
use crate::kv::{KvLayer, SeqRow};
use crate::threads::Disjoint;
use crate::{Isa, Pool};
use kernel::{RowWeights, WeightKernels};

pub(crate) mod kernel;
mod reduce;
mod variants;

pub use reduce::WeightReduce;

/// The attention weights of the watched rows of a call of [`Attention::run_watched`], in reusable buffers.
///
/// They take 4 bytes for each watched row, query head and stored position.
#[derive(Debug, Default)]
pub struct AttnWeights {
    heads: usize,
    kv_heads: usize,
    /// Watched rows, ascending.
    rows: Vec<WatchedRow>,
    /// `[rows][heads][stride of the row]`
    p: Vec<f32>,
    /// `[rows][heads][splits of the row]`
    factors: Vec<f32>,
    /// Number of stored positions up to the row's own, `[rows, kv_heads]`.
    stored: Vec<usize>,
}

/// A watched row, and the offsets of its data.
#[derive(Debug, Clone, Copy)]
struct WatchedRow {
    /// Index in the batch.
    row: usize,
    seq: u32,
    p: usize,
    /// Capacity in positions: those of its longest head, in whole blocks.
    stride: usize,
    factors: usize,
    splits: usize,
    /// The first visible stored position.
    first: usize,
}

impl AttnWeights {
    /// Empty buffers.
    pub fn new() -> AttnWeights {
        AttnWeights::default()
    }

    /// Replaces `weights` by the attention weights of a watched row for a query head: `[stored positions]` of its
    /// KV head up to the row's own, 0 outside the layer's window. Their sum lacks the weight of a sink.
    ///
    /// # Panics
    /// If the row was not watched, or the head does not exist.
    pub fn row(&self, row: usize, head: usize, weights: &mut Vec<f32>) {
        assert!(head < self.heads, "head {head} of {}", self.heads);
        let group = self.heads / self.kv_heads;
        let of_group = self.of(self.watched(row..row + 1).start, head / group);
        let (p, factors) = (of_group.p.chunks(of_group.stride), of_group.factors.chunks(of_group.splits));
        weights.clear();
        for (p, factors) in p.zip(factors).skip(head % group).take(1) {
            weights.extend(p[..of_group.end].iter().enumerate().map(|(i, p)| p * factors[i / SPLIT]));
        }
    }

    /// Resets the buffers and makes room for the weights of the `watched` rows of a call.
    pub(super) fn watch(
        &mut self,
        call: &Attention<'_>,
        isa: Isa,
        watched: impl Iterator<Item = usize>,
    ) -> Watch<'_> {
        let KvLayer { kv_heads, kind, .. } = *call.shape();
        (self.heads, self.kv_heads) = (call.heads, kv_heads);
        self.rows.clear();
        self.stored.clear();
        let (mut p, mut factors) = (0, 0);
        for row in watched {
            let ascending = self.rows.last().is_none_or(|last| last.row < row);
            assert!(ascending && row < call.rows.len(), "watched rows ascend, below {}", call.rows.len());
            let SeqRow { seq, len } = call.rows[row];
            let kv = &call.seqs[seq as usize];
            let stored = kv.stored_max(len);
            let (stride, splits) = (stored.next_multiple_of(LANES), stored.div_ceil(SPLIT));
            let first = kind.first_visible(len) as usize;
            self.rows.push(WatchedRow { row, seq, p, stride, factors, splits, first });
            self.stored.extend((0..kv_heads).map(|head| kv.stored(head, len)));
            p += call.heads * stride;
            factors += call.heads * splits;
        }
        self.p.resize(p.max(self.p.len()), 0.0);
        self.factors.resize(factors.max(self.factors.len()), 0.0);
        self.clear_unseen();
        Watch {
            kernels: variants::kernels_of(isa),
            rows: &self.rows,
            p: Disjoint::new(&mut self.p),
            factors: Disjoint::new(&mut self.factors),
        }
    }

    /// Clears the positions before the first block that a row sees, which no unit will write: probabilities
    /// become 0, and maxima -inf, which gives the factor 0.
    fn clear_unseen(&mut self) {
        for &WatchedRow { p, stride, factors, splits, first, .. } in &self.rows {
            let (blocks, unseen) = (first / LANES * LANES, first / SPLIT);
            for head in 0..self.heads {
                self.p[p + head * stride..][..blocks].fill(0.0);
                self.factors[factors + head * splits..][..unseen].fill(f32::NEG_INFINITY);
            }
        }
    }

    /// Indices in [`AttnWeights::rows`] of rows of the batch.
    ///
    /// # Panics
    /// If a row was not watched.
    fn watched(&self, rows: Range<usize>) -> Range<usize> {
        let first = self.rows.partition_point(|watched| watched.row < rows.start);
        let found =
            self.rows[first..].iter().zip(rows.clone()).take_while(|(watched, row)| watched.row == *row);
        assert!(found.count() == rows.len(), "rows {rows:?} were not all watched");
        first..first + rows.len()
    }

    /// The weights of a watched row for the query heads of a KV head.
    fn of(&self, index: usize, kv_head: usize) -> RowWeights<'_> {
        let WatchedRow { p, stride, factors, splits, first, .. } = self.rows[index];
        let (group, end) = (self.heads / self.kv_heads, self.stored[index * self.kv_heads + kv_head]);
        RowWeights {
            p: &self.p[p + kv_head * group * stride..][..group * stride],
            stride,
            factors: &self.factors[factors + kv_head * group * splits..][..group * splits],
            splits,
            end,
            count: end - first,
        }
    }
}

impl Attention<'_> {
    /// [`Attention::run`] that also records the weights of some rows in `weights`; `out` has the same bits.
    ///
    /// * `watched`: rows of the batch, ascending
    ///
    /// # Panics
    /// As [`Attention::run`], and if watched rows do not exist or do not ascend.
    pub fn run_watched(
        &self,
        pool: &Pool,
        scratch: &mut super::AttnScratch,
        out: &mut [f32],
        watched: impl IntoIterator<Item = usize>,
        weights: &mut AttnWeights,
    ) {
        self.run_watched_with(Isa::current(), pool, scratch, out, watched, weights);
    }

    /// [`Attention::run_watched`] with the kernels of `isa`, which the machine must have.
    pub(super) fn run_watched_with(
        &self,
        isa: Isa,
        pool: &Pool,
        scratch: &mut super::AttnScratch,
        out: &mut [f32],
        watched: impl IntoIterator<Item = usize>,
        weights: &mut AttnWeights,
    ) {
        self.check(out);
        let watch = weights.watch(self, isa, watched.into_iter());
        self.run_with(isa, pool, scratch, out, Some(watch));
    }
}

/// Destination of the attention weights of a call's watched rows.
pub(super) struct Watch<'a> {
    kernels: WeightKernels,
    rows: &'a [WatchedRow],
    p: Disjoint<'a, f32>,
    factors: Disjoint<'a, f32>,
}

impl Watch<'_> {
    /// Records the attention weights of a row in one split: `p` of the blocks that it sees a part of, which begin
    /// at stored position `first`, and the split's maximum.
    ///
    /// # Safety
    /// No other thread records or finishes this row and head concurrently.
    pub(super) unsafe fn keep(&self, row: u32, head: usize, first: usize, p: &[f32], m: f32) {
        let Some(watched) = self.find(row) else { return };
        // SAFETY: ranges of different rows, heads and splits do not overlap, and the caller owns this one.
        let (to, factor) = unsafe {
            let factor = watched.factors + head * watched.splits + first / SPLIT;
            let to = watched.p + head * watched.stride + first;
            (self.p.range(to, p.len()), self.factors.range(factor, 1))
        };
        to.copy_from_slice(p);
        factor[0] = m;
    }

    /// Converts the maxima of all splits to factors, for a row and a head that stores `count` positions.
    ///
    /// # Safety
    /// As [`Watch::keep`], which was called for all splits that the row sees a part of.
    pub(super) unsafe fn finish(&self, row: u32, head: usize, count: usize, sum: Softmax) {
        let Some(watched) = self.find(row) else { return };
        let first = watched.factors + head * watched.splits;
        // SAFETY: the caller's promise; the kernels are those of the machine.
        unsafe { (self.kernels.factors)(self.factors.range(first, count.div_ceil(SPLIT)), sum) };
    }

    fn find(&self, row: u32) -> Option<&WatchedRow> {
        let at = self.rows.binary_search_by_key(&(row as usize), |watched| watched.row);
        at.ok().map(|at| &self.rows[at])
    }
}
