//! What is observed of one sequence while its rows are computed, for those who decide what it forgets.
//!
//! Rows count in the order of their positions, each in one fixed order of sums: what is observed depends on the
//! rows alone, not on how they were cut into batches.

use std::ops::Range;

use kvik_cache::retain::{Decision, Reduce, Retention, Watch};
use kvik_kernels::{AttnWeights, Pool, QueryMoments, WeightReduce};

/// What was observed of a sequence so far, layer by layer.
#[derive(Debug, Default)]
pub struct Observation {
    /// `[layers]`; shorter before the first batch.
    layers: Vec<LayerObservation>,
}

/// What was observed in one layer.
#[derive(Debug, Default)]
pub struct LayerObservation {
    /// What rows paid to each stored position, `[kv_heads][stored]`; heads and positions that no row has
    /// seen yet may be missing.
    pub mass: Vec<Vec<f32>>,
    /// Moments of the queries before rotation.
    pub moments: Option<QueryMoments>,
    /// Leading positions whose queries do not count.
    pub skipped: usize,
}

/// Rows of a batch that are observed: of one sequence, side by side.
pub struct Watched<'a> {
    /// Indices of the rows in the batch.
    pub rows: Range<usize>,
    /// What of them.
    pub watch: Watch,
    /// Where a repeated piece of the sequence is stored; weights are shares among these positions and none
    /// is counted elsewhere. Empty but for [`Watch::Repeat`].
    pub among: Vec<Range<usize>>,
    /// Where it goes.
    pub observation: &'a mut Observation,
}

impl Observation {
    /// What was observed in a layer, if anything was.
    pub fn get(&self, layer: usize) -> Option<&LayerObservation> {
        self.layers.get(layer)
    }

    /// What was observed in a layer.
    pub fn layer(&mut self, layer: usize) -> &mut LayerObservation {
        if self.layers.len() <= layer {
            self.layers.resize_with(layer + 1, LayerObservation::default);
        }
        &mut self.layers[layer]
    }

    /// A point was passed at which `decision` was kept. What `retention` does not carry on is observed anew.
    pub fn pass_point(&mut self, retention: &Retention, decision: &Decision) {
        for (layer, kept) in self.layers.iter_mut().zip(&decision.kept) {
            if !retention.accumulates() {
                layer.mass.clear();
            }
            for (mass, kept) in layer.mass.iter_mut().zip(kept) {
                *mass = kept.iter().map(|&index| mass.get(index as usize).copied().unwrap_or(0.0)).collect();
            }
        }
    }
}

impl Watched<'_> {
    /// Whether attention weights of its rows are wanted.
    pub(super) fn weighs(&self) -> bool {
        matches!(self.watch, Watch::Attention { .. } | Watch::Repeat)
    }

    /// Takes in the weights of `rows`, which are rows of its sequence among those of `weights`.
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

    /// Takes in the queries of its rows, before they are rotated; `positions` `[n]` and `q` `[n, heads, head_dim]`
    /// are those of the batch.
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
