//! Values of retained positions, fitted so that attention to them gives what attention to all stored positions gave:
//! Attention Matching (arXiv 2602.16284) with keys as they are and without biases.
//!
//! The queries are those of rows that repeated the prompt. For each of them attention to all stored positions is
//! computed again, and its weights at the retained ones, divided by their sum, say what is left of it. The change of
//! values that makes up for the rest is found by ridge regression, for [`BLOCK`] positions after the other.

use half::f16;
use half::slice::HalfFloatSliceExt;
use kvik_kernels::{Attention, AttnScratch, AttnWeights, KvArena, KvKind, Pool, SeqKv, SeqRow, WeightedSums};

use super::ModelConfig;
use super::arch::LayerShape;
use super::batch::StoredLayer;
use super::pulse::Pulse;

/// Positions whose values are fitted together.
const BLOCK: usize = 256;
/// Strength of the ridge. Weaker ones fit the repetition better and questions worse, most where little was lost.
const STRENGTH: f64 = 1.0;
/// Maximum number of queries of a KV head to which its values are fitted.
const QUERIES_MAX: usize = 2048;
/// Maximum bytes of the queries that are kept of one sequence.
const QUERY_BYTES_MAX: usize = 64 << 20;
/// Maximum number of attention weights of retained positions held at a time: 64 MiB.
const KEPT_WEIGHTS_MAX: usize = 16 << 20;
/// Maximum number of attention weights of all positions held at a time: 16 MiB.
const WEIGHTS_MAX: usize = 4 << 20;

/// Whether the values of a layer can be fitted: it stores its own, beside the keys, and every query sees all positions.
pub(super) fn fits(shape: &LayerShape) -> bool {
    shape.kind == KvKind::Full && shape.latent.is_none() && shape.source.is_none()
}

/// Maximum number of rows whose queries are kept of a sequence.
pub(super) fn rows_max(config: &ModelConfig) -> usize {
    let shapes = config.kv_layers().map(|index| config.layer(index)).filter(fits);
    let (mut bytes, mut group) = (0, 1);
    for shape in shapes {
        bytes += shape.heads * shape.head_dim * size_of::<f16>();
        group = group.max(shape.heads / shape.kv_heads);
    }
    (QUERY_BYTES_MAX / bytes.max(1)).min(QUERIES_MAX / group).max(1)
}

/// A layer whose values are fitted.
pub(super) struct LayerFit<'a> {
    pub(super) arena: &'a KvArena,
    pub(super) pool: &'a Pool,
    pub(super) pulse: &'a Pulse,
    pub(super) shape: LayerShape,
    pub(super) softcap: Option<f32>,
    /// `[heads]`
    pub(super) sinks: Option<&'a [f32]>,
}

/// The retained positions of one KV head.
struct HeadFit<'a> {
    /// Indices of the retained positions among the stored ones.
    kept: &'a [u32],
    /// The weight of each retained position for each query, `[n, kept]`.
    weights: Vec<f32>,
    /// What attention to the retained positions lacks for each query, `[n, value_dim]`.
    lacking: Vec<f32>,
    /// `[kept, value_dim]`
    values: Vec<f32>,
    /// The weights of one query at all positions.
    row: Vec<f32>,
}

impl LayerFit<'_> {
    /// The fitted values of the positions `kept`, `[kv_heads]` indices of stored positions: `[kv_heads]` of
    /// `[kept, value_dim]`. The first `fixed` ones stay as they are. `None` if the layer has none to fit, or no queries
    /// were observed.
    pub(super) fn values(
        &self,
        stored: &StoredLayer<'_>,
        kept: &[&[u32]],
        fixed: usize,
    ) -> Option<Vec<Vec<f32>>> {
        let queries = stored.observed.map_or(&[][..], |observed| &observed.queries);
        let everything = kept.iter().zip(&stored.positions).all(|(kept, all)| kept.len() == all.len());
        if everything || queries.is_empty() || !fits(&self.shape) {
            return None;
        }
        let blocks: Vec<u32> = stored.kv.blocks.iter().map(|block| block.0).collect();
        let kv = stored.kv.layer(stored.layer, &blocks);
        let mut heads: Vec<HeadFit<'_>> =
            kept.iter().enumerate().map(|(head, kept)| self.head(stored, head, &kv, kept)).collect();
        self.attend(stored, &kv, queries, &mut heads);
        for heads in heads.chunks_mut(self.pool.threads()) {
            self.pulse.beat();
            self.pool.run_chunks(heads, 1, |_, head| head[0].fit(fixed));
        }
        Some(heads.into_iter().map(|head| head.values).collect())
    }

    fn head<'a>(
        &self,
        stored: &StoredLayer<'_>,
        head: usize,
        kv: &SeqKv<'_>,
        kept: &'a [u32],
    ) -> HeadFit<'a> {
        let vectors = self.arena.values(stored.layer, head, kv);
        let mut all = vec![0.0; stored.positions[head].len() * vectors.dim()];
        vectors.copy(0..stored.positions[head].len(), &mut all);
        let value = |&index: &u32| &all[index as usize * vectors.dim()..][..vectors.dim()];
        let values = kept.iter().flat_map(value).copied().collect();
        HeadFit { kept, weights: Vec::new(), lacking: Vec::new(), values, row: Vec::new() }
    }

    /// Computes the attention of the queries again, and adds it to `heads`.
    fn attend(&self, stored: &StoredLayer<'_>, kv: &SeqKv<'_>, queries: &[f16], heads: &mut [HeadFit<'_>]) {
        let LayerShape { heads: query_heads, kv_heads, head_dim, scale, .. } = self.shape;
        let (width, group) = (query_heads * head_dim, query_heads / kv_heads);
        let kept: usize = heads.iter().map(|head| head.kept.len()).sum();
        let rows_max = (KEPT_WEIGHTS_MAX / (group * kept).max(1)).max(1);
        let step = (queries.len() / width).div_ceil(rows_max);
        let rows: Vec<&[f16]> = queries.chunks_exact(width).step_by(step).collect();
        let (mut scratch, mut weights) = (AttnScratch::new(), AttnWeights::new());
        let piece_rows = (WEIGHTS_MAX / (query_heads * stored.tokens).max(1)).max(1);
        for piece in rows.chunks(piece_rows) {
            self.pulse.beat();
            let mut q = vec![0.0; piece.len() * width];
            piece.iter().zip(q.chunks_exact_mut(width)).for_each(|(row, q)| row.convert_to_f32_slice(q));
            let mut out = vec![0.0; piece.len() * query_heads * self.shape.value_dim()];
            let rows = vec![SeqRow { seq: 0, len: stored.tokens as u32 }; piece.len()];
            let operands = Attention {
                arena: self.arena,
                layer: stored.layer,
                q: &q,
                heads: query_heads,
                rows: &rows,
                seqs: &[*kv],
                scale,
                softcap: self.softcap,
                sinks: self.sinks,
            };
            operands.run_watched(self.pool, &mut scratch, &mut out, 0..piece.len(), &mut weights);
            self.pool.run_chunks(heads, 1, |index, head| {
                for (at, out) in out.chunks_exact(self.shape.value_dim()).enumerate() {
                    let (row, query_head) = (at / query_heads, at % query_heads);
                    if query_head / group == index {
                        head[0].add((&weights, row, query_head), out, self.sinks.is_some());
                    }
                }
            });
        }
    }
}

impl HeadFit<'_> {
    /// Adds a query whose attention to all stored positions is `out`. The weight of a sink, which has no value, stays
    /// beside those of the retained positions.
    fn add(&mut self, (weights, row, head): (&AttnWeights, usize, usize), out: &[f32], has_sink: bool) {
        weights.row(row, head, &mut self.row);
        let kept = self.kept.iter().map(|&index| self.row[index as usize]);
        let sink = if has_sink { (1.0 - self.row.iter().sum::<f32>()).max(0.0) } else { 0.0 };
        let sum = kept.clone().sum::<f32>() + sink;
        let factor = if sum > 0.0 { 1.0 / sum } else { 0.0 };
        self.weights.extend(kept.map(|weight| weight * factor));
        self.lacking.extend_from_slice(out);
    }

    /// Fits the values behind the first `fixed`.
    fn fit(&mut self, fixed: usize) {
        let HeadFit { kept, weights, lacking, values, .. } = self;
        let sums = WeightedSums { weights, width: kept.len() };
        let dim = values.len() / kept.len();
        sums.subtract(0..kept.len(), values, lacking);
        for start in (fixed..kept.len()).step_by(BLOCK) {
            let columns = start..kept.len().min(start + BLOCK);
            let change = sums.fit(columns.clone(), STRENGTH, lacking);
            let values = &mut values[columns.start * dim..columns.end * dim];
            values.iter_mut().zip(change).for_each(|(value, change)| *value += change);
        }
    }
}
