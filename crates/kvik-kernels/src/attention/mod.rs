//! Attention over paged keys and values in any storage format.
//!
//! A row's result depends, to the bit, only on its query, its position count and the stored data of those
//! positions: not on the other rows, the threads, or the bytes after the last position. [`kernel`] defines the
//! arithmetic, [`plan`] decides which rows share a read, [`plans`] keeps the decision from layer to layer, [`units`]
//! runs the plan.

use crate::kv::sequence::check as check_rows;
use crate::kv::{BLOCK_POSITIONS, KvArena, KvLayer, KvValues, SeqKv, SeqRow};
use crate::threads::Disjoint;
use crate::{Isa, Pool};
use kernel::{AttentionKernels, Softmax};
use plan::PlanLimits;
use plans::Plans;
use units::{Units, Workspace};
use weights::Watch;

#[cfg(target_arch = "x86_64")]
mod bfloats;
pub(crate) mod floats;
pub(crate) mod kernel;
pub(crate) mod latent;
mod plan;
mod plans;
pub(crate) mod quantised;
#[cfg(target_arch = "x86_64")]
mod tiled;
mod units;
mod variants;
mod weights;

pub use weights::{AttnWeights, WeightReduce};

/// Positions processed at a time. Part of the arithmetic: results change with it.
const SPLIT: usize = 256;
const SPLIT_BLOCKS: usize = SPLIT / BLOCK_POSITIONS;

/// Query rows of a unit, unless a KV head has more query heads: enough to hide the reads of K and V, few enough
/// for their scores to stay in the second-level cache.
const UNIT_QUERY_ROWS: usize = 96;

/// Query heads per preparation task: those of a decode row are not worth waking a thread for.
const QUERY_HEADS: usize = 64;

/// Buffers that calls of [`Attention::run`] reuse, so that a call allocates nothing once they have grown, and one with
/// the rows and blocks of an earlier call need not be planned again.
#[derive(Debug, Default)]
pub struct AttnScratch {
    plans: Plans,
    workspaces: Vec<Workspace>,
    /// Results of split units: `[partials, heads, value_lanes]` and `[partials, heads]`.
    partial_out: Vec<f32>,
    partial_sums: Vec<Softmax>,
    /// `[n, heads]` queries, quantised for quantised keys.
    queries: Vec<f32>,
}

impl AttnScratch {
    /// Empty buffers.
    pub fn new() -> AttnScratch {
        AttnScratch::default()
    }

    /// Makes room for the plan, on `threads` threads, with up to `query_rows` query rows in a unit.
    fn grow(&mut self, threads: usize, heads: usize, query_rows: usize, shape: &KvLayer) {
        let (lanes, partials) = (shape.value_lanes(), self.plans.current().partials * heads);
        let room_bytes = query_rows * quantised::weight_bytes(shape.v, lanes);
        self.workspaces.resize_with(threads.max(self.workspaces.len()), Workspace::default);
        for workspace in &mut self.workspaces {
            workspace.grow(query_rows, lanes, room_bytes, latent::turned_bytes(shape));
        }
        self.partial_out.resize(self.partial_out.len().max(partials * lanes), 0.0);
        self.partial_sums.resize(self.partial_sums.len().max(partials), Softmax::EMPTY);
    }
}

/// Attention of `n` rows in one layer: `softmax(scale q K) V`, head by head, over the positions that the layer's
/// [`KvKind`](crate::KvKind) makes visible to a row.
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a> {
    /// The arena that stores keys and values.
    pub arena: &'a KvArena,
    /// The layer of the arena whose keys and values are read.
    pub layer: usize,
    /// `[n, heads, key_dim]`; query head `h` reads KV head `h * kv_heads / heads`.
    pub q: &'a [f32],
    /// Query heads, a multiple of the layer's KV heads.
    pub heads: usize,
    /// `[n]`: the positions that each row attends to; rows of a sequence are contiguous.
    pub rows: &'a [SeqRow],
    /// The sequences that the rows' `seq` indexes.
    pub seqs: &'a [SeqKv<'a>],
    /// Factor of every score.
    pub scale: f32,
    /// Soft cap: a score becomes `cap tanh(score scale / cap)`.
    pub softcap: Option<f32>,
    /// `[heads]` attention sinks: scores without a value, which take part in the softmax and add nothing. They
    /// are neither scaled nor capped; a sink of -inf has no effect.
    pub sinks: Option<&'a [f32]>,
}

impl Attention<'_> {
    /// Writes the results to `out`, `[n, heads, value_dim]`.
    ///
    /// # Panics
    /// If a shape does not fit, the soft cap is not positive and finite, or a row attends to no position, to an
    /// unknown sequence, to positions that its sequence's blocks and tails do not hold, or if a head has dropped
    /// all positions that the row could see, or any position in a layer with a window.
    pub fn run(&self, pool: &Pool, scratch: &mut AttnScratch, out: &mut [f32]) {
        self.check(out);
        self.run_with(Isa::current(), pool, scratch, out, None);
    }

    /// Executes a checked call with the kernels of `isa`, which the machine must have.
    fn run_with(
        &self,
        isa: Isa,
        pool: &Pool,
        scratch: &mut AttnScratch,
        out: &mut [f32],
        watch: Option<Watch<'_>>,
    ) {
        self.run_kernels(variants::kernels(isa, self.shape()), pool, scratch, out, watch);
    }

    /// Executes a checked call with kernels for the layer's formats, which the machine must support.
    fn run_kernels(
        &self,
        kernels: AttentionKernels,
        pool: &Pool,
        scratch: &mut AttnScratch,
        out: &mut [f32],
        watch: Option<Watch<'_>>,
    ) {
        let shape = self.shape();
        let (group, value_lanes, limits) =
            (self.heads / shape.kv_heads, shape.value_lanes(), self.limits(pool));
        scratch.plans.set(self.rows, self.seqs, limits);
        scratch.grow(pool.threads(), self.heads, limits.unit_rows_max * group, shape);
        let AttnScratch { plans, workspaces, partial_out, partial_sums, queries } = scratch;
        let query_len = quantised::query_len(shape.k, shape.key_dim);
        if query_len > 0 {
            queries.resize(self.rows.len() * self.heads * query_len, 0.0);
            prepare_queries(pool, kernels, self.q, shape.key_dim, queries, query_len);
        }
        let (q, query_len) = if query_len > 0 { (&queries[..], query_len) } else { (self.q, shape.key_dim) };
        let units = Units {
            operands: Attention { q, ..*self },
            shape,
            kernels,
            query_len,
            group,
            value_lanes,
            value_scales: match shape.values {
                KvValues::Stored => quantised::value_scales(shape.v, value_lanes),
                // The values are in the keys, which were read already.
                KvValues::OfKeys => 0..0,
            },
            plan: plans.current(),
            watch,
            out: Disjoint::new(out),
            partial_out: Disjoint::new(partial_out),
            partial_sums: Disjoint::new(partial_sums),
        };
        units.run(pool, workspaces);
    }

    /// The layer's shape and formats.
    fn shape(&self) -> &KvLayer {
        &self.arena.layout().layers()[self.layer]
    }

    fn limits(&self, pool: &Pool) -> PlanLimits {
        let KvLayer { kv_heads, kind, .. } = *self.shape();
        let unit_rows_max = (UNIT_QUERY_ROWS / (self.heads / kv_heads)).max(1);
        PlanLimits { kind, unit_rows_max, whole_units_min: (2 * pool.threads()).div_ceil(kv_heads) }
    }

    /// Checks everything that could make a kernel read or write outside its operands.
    fn check(&self, out: &[f32]) {
        let Attention { arena, layer, q, heads, rows, seqs, softcap, sinks, .. } = *self;
        let layers = arena.layout().layers();
        assert!(layer < layers.len(), "layer {layer} of {}", layers.len());
        let shape = &layers[layer];
        let grouped = heads > 0 && heads.is_multiple_of(shape.kv_heads);
        assert!(grouped, "{heads} heads share {} KV heads", shape.kv_heads);
        assert!(q.len() == rows.len() * heads * shape.key_dim, "q is [n, heads, key_dim]");
        assert!(out.len() == rows.len() * heads * shape.value_dim, "out is [n, heads, value_dim]");
        if let Some(cap) = softcap {
            assert!(cap > 0.0 && cap.is_finite(), "a soft cap of {cap}");
        }
        let of_heads = sinks.is_none_or(|sinks| sinks.len() == heads);
        assert!(of_heads, "sinks are [{heads}]");
        check_rows(shape, rows, seqs);
    }
}

/// Converts the query vectors in `q` for quantised keys, to `[n, heads, query_len]`.
fn prepare_queries(
    pool: &Pool,
    kernels: AttentionKernels,
    q: &[f32],
    key_dim: usize,
    queries: &mut [f32],
    query_len: usize,
) {
    pool.run_chunks(queries, QUERY_HEADS * query_len, |chunk, queries| {
        let q = &q[chunk * QUERY_HEADS * key_dim..];
        for (q, query) in q.chunks_exact(key_dim).zip(queries.chunks_exact_mut(query_len)) {
            // SAFETY: the kernels are those of the machine and of the format that `query_len` belongs to.
            unsafe { (kernels.query)(q, query) };
        }
    });
}

#[cfg(test)]
mod tests;
