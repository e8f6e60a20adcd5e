//! Observations of a sequence while its rows are computed, on which its retention policy decides.
//!
//! Rows are added in the order of their positions, in a fixed order of sums: the observations depend only on the rows,
//! not on how they were divided into batches.

use std::ops::Range;

use half::f16;
use half::slice::HalfFloatSliceExt;
use kvik_cache::retain::{Decision, Reduce, Retention, Watch};
use kvik_kernels::{AttnWeights, Pool, QueryMoments, WeightReduce};

/// The observations of a sequence so far, layer by layer.
#[derive(Debug, Default)]
pub struct Observation {
    /// `[layers]`; shorter before the first batch.
    layers: Vec<LayerObservation>,
}

/// The observations of one layer.
#[derive(Debug, Default)]
pub struct LayerObservation {
    /// The attention that each stored position received from rows, `[kv_heads][stored]`; heads and positions that no
    /// row has attended to yet may be missing.
    pub mass: Vec<Vec<f32>>,
    /// Moments of the queries before rotation.
    pub moments: Option<QueryMoments>,
    /// Number of leading positions whose queries do not count.
    pub skipped: usize,
    /// Rotated queries of rows that repeat the prompt, `[n, heads, head_dim]`.
    pub queries: Vec<f16>,
}

/// Rows of a batch that repeat adjacent tokens of a prompt, and whose queries are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repeated {
    /// Indices of the rows in the batch.
    pub rows: Range<usize>,
    /// The position of the token that the first row repeats.
    pub from: usize,
    /// Number of tokens of the prompt.
    pub prompt: usize,
}

/// Observed rows of a batch: adjacent rows of one sequence.
pub struct Watched<'a> {
    /// Indices of the rows in the batch.
    pub rows: Range<usize>,
    /// The kind of observation.
    pub watch: Watch,
    /// The positions of a repeated piece of the sequence; weights are normalised over these positions and none is
    /// counted elsewhere. Empty except for [`Watch::Repeat`].
    pub among: Vec<Range<usize>>,
    /// The rows whose queries are kept, as many of them as there is room for. Only with [`Watch::Repeat`].
    pub repeated: Option<Repeated>,
    /// The target of the observations.
    pub observation: &'a mut Observation,
}

impl Observation {
    /// The observations of a layer, if there are any.
    pub fn get(&self, layer: usize) -> Option<&LayerObservation> {
        self.layers.get(layer)
    }

    /// The observations of a layer, created if needed.
    pub fn layer(&mut self, layer: usize) -> &mut LayerObservation {
        if self.layers.len() <= layer {
            self.layers.resize_with(layer + 1, LayerObservation::default);
        }
        &mut self.layers[layer]
    }

    /// Applies `decision` at a point: keeps the observations of retained positions, and discards those that `retention`
    /// does not accumulate.
    pub fn pass_point(&mut self, retention: &Retention, decision: &Decision) {
        for (layer, kept) in self.layers.iter_mut().zip(&decision.kept) {
            if !retention.accumulates() {
                layer.mass.clear();
            }
            layer.queries = Vec::new();
            for (mass, kept) in layer.mass.iter_mut().zip(kept) {
                *mass = kept.iter().map(|&index| mass.get(index as usize).copied().unwrap_or(0.0)).collect();
            }
        }
    }
}

impl Watched<'_> {
    /// Whether attention weights of its rows are needed.
    pub(super) fn weighs(&self) -> bool {
        matches!(self.watch, Watch::Attention { .. } | Watch::Repeat)
    }

    /// Adds the weights of `rows`, which are rows of its sequence among those of `weights`.
    pub(super) fn weigh(
        &mut self,
        pool: &Pool,
        (layer, kv_heads): (usize, usize),
        weights: &AttnWeights,
        rows: Range<usize>,
    ) {
        let reduce = match self.watch {
            Watch::Attention { reduce: Reduce::Sum, .. } => WeightReduce::Sum,
            Watch::Attention { reduce: Reduce::Decayed(factor), .. } => WeightReduce::Decayed(factor),
            Watch::Attention { reduce: Reduce::Above, .. } => WeightReduce::Above,
            Watch::Attention { reduce: Reduce::Max, .. } | Watch::Repeat => WeightReduce::Max,
            Watch::Nothing | Watch::Queries { .. } => return,
        };
        let mass = &mut self.observation.layer(layer).mass;
        mass.resize_with(kv_heads, Vec::new);
        weights.reduce(pool, rows, reduce, &self.among, mass);
    }

    /// Keeps the queries of rows that repeat the prompt, evenly spaced so that of all its rows at most `rows_max` are
    /// kept; `q` is `[n, width]`.
    pub(super) fn keep_queries(&mut self, layer: usize, q: &[f32], width: usize, rows_max: usize) {
        let Some(Repeated { rows, from, prompt }) = &self.repeated else { return };
        let step = prompt.div_ceil(rows_max).max(1);
        let kept = rows.clone().zip(*from..).filter(|(_, position)| position.is_multiple_of(step));
        let queries = &mut self.observation.layer(layer).queries;
        for (row, _) in kept {
            let start = queries.len();
            queries.resize(start + width, f16::ZERO);
            queries[start..].convert_from_f32_slice(&q[row * width..][..width]);
        }
    }

    /// Adds the queries of its rows before rotation; `positions` `[n]` and `q` `[n, heads, head_dim]` are those of the
    /// batch.
    pub(super) fn note_queries(
        &mut self,
        pool: &Pool,
        layer: usize,
        positions: &[u32],
        q: &[f32],
        head_dim: usize,
    ) {
        let Watch::Queries { skip } = self.watch else { return };
        let width = q.len() / positions.len();
        let skipped =
            positions[self.rows.clone()].iter().take_while(|&&position| (position as usize) < skip).count();
        let counted = self.rows.start + skipped..self.rows.end;
        let observed = self.observation.layer(layer);
        observed.skipped = skip;
        let moments = observed.moments.get_or_insert_with(|| QueryMoments::new(width / head_dim, head_dim));
        moments.add(pool, &q[counted.start * width..counted.end * width]);
    }
}
