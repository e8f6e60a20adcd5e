//! Adds the contributions of adapters to computed matrix products.
//!
//! Each row is computed separately, with its adapters in the order of its mix: the result does not depend on the other
//! rows of the batch.

use kvik_kernels::{Activations, Pool, add, matmul};

use super::AdapterId;
use super::{Adapters, Part, Place};
use crate::adapt::Adapt;
use crate::batch::Batch;

/// The rows of a batch to which adapters apply.
#[derive(Default)]
pub(crate) struct AdaptedRows {
    /// In the order of the mixes.
    groups: Vec<Group>,
}

/// The rows of one adapter.
struct Group {
    adapter: AdapterId,
    /// Rows with their scales, ascending.
    rows: Vec<(usize, f32)>,
}

/// Buffers shared by the products with adapters.
#[derive(Default)]
pub(crate) struct Buffers {
    /// Rows of the input, `[rows, cols]`.
    gathered: Vec<f32>,
    /// `A x`, `[rows, rank]`.
    low: Vec<f32>,
    /// `scale B (A x)`, `[rows, rows of the matrix]`.
    added: Vec<f32>,
    inputs: Activations,
}

/// Adapters applied to a batch.
pub(crate) struct Adapting<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) adapters: &'a Adapters,
    pub(crate) rows: &'a AdaptedRows,
    pub(crate) buffers: &'a mut Buffers,
}

impl AdaptedRows {
    /// Collects the rows of a batch.
    ///
    /// Groups are in the order of the adapters' digests, as are the uses of every mix: so every row has its adapters in
    /// the order of its mix.
    pub(crate) fn set(&mut self, adapters: &Adapters, batch: &Batch<'_>) {
        self.groups.clear();
        for (index, row) in batch.rows.iter().enumerate() {
            let Some(mix) = batch.sequences[row.sequence as usize].adapters else { continue };
            for used in mix.uses() {
                let group = self.groups.iter_mut().find(|group| group.adapter == used.adapter);
                match group {
                    Some(group) => group.rows.push((index, used.scale)),
                    None => {
                        self.groups.push(Group { adapter: used.adapter, rows: vec![(index, used.scale)] })
                    }
                }
            }
        }
        let digest = |id: AdapterId| adapters.get(id).map(super::Adapter::digest);
        self.groups.sort_unstable_by_key(|group| (digest(group.adapter), group.adapter));
    }

    /// Restricts the rows to those of the batch that are `wanted`, ascending, and renumbers them.
    pub(crate) fn keep(&mut self, wanted: &[usize]) {
        for group in &mut self.groups {
            group.rows.retain_mut(|(row, _)| match wanted.binary_search(row) {
                Ok(index) => {
                    *row = index;
                    true
                }
                Err(_) => false,
            });
        }
    }
}

impl Adapting<'_> {
    /// Adds to `out`, `[n, rows]`, the contribution of adapters at `place` for `x`, `[n, cols]`.
    pub(crate) fn add(&mut self, place: Place, x: &[f32], out: &mut [f32]) {
        let (adapters, groups) = (self.adapters, &self.rows.groups);
        for group in groups.iter().filter(|group| !group.rows.is_empty()) {
            let part = adapters.get(group.adapter).and_then(|adapter| adapter.part(place));
            if let Some(part) = part {
                self.add_part(part, &group.rows, x, out);
            }
        }
    }

    fn add_part(&mut self, part: &Part, rows: &[(usize, f32)], x: &[f32], out: &mut [f32]) {
        let (rank, width) = (part.a.rows(), part.b.rows());
        // The numbers of other rows, of other requests, would be changed.
        assert_eq!(out.len() * part.a.cols(), x.len() * width, "rows of `{}`", part.name);
        let Buffers { gathered, low, added, inputs } = &mut *self.buffers;
        gathered.clear();
        for run in runs(rows) {
            gathered.extend_from_slice(&x[run.start * part.a.cols()..run.end * part.a.cols()]);
        }
        inputs.set(self.pool, gathered, part.a.cols(), &[&part.a]);
        low.resize(rows.len() * rank, 0.0);
        matmul(self.pool, &part.a, inputs, low);
        for (low, (_, scale)) in low.chunks_exact_mut(rank).zip(rows) {
            low.iter_mut().for_each(|value| *value *= part.scale * scale);
        }
        inputs.set(self.pool, low, rank, &[&part.b]);
        added.resize(rows.len() * width, 0.0);
        matmul(self.pool, &part.b, inputs, added);
        let mut rest = added.as_slice();
        for run in runs(rows) {
            let (added, others) = rest.split_at(run.len() * width);
            add(self.pool, &mut out[run.start * width..run.end * width], added);
            rest = others;
        }
    }
}

/// Adapters applied in the layer with this index.
pub(crate) struct InLayer<'a>(pub(crate) Adapting<'a>, pub(crate) usize);

impl Adapt for InLayer<'_> {
    fn is_silent(&self) -> bool {
        self.0.rows.groups.iter().all(|group| group.rows.is_empty())
    }

    fn add(&mut self, name: &'static str, x: &[f32], out: &mut [f32]) {
        self.0.add(Place::Layer(self.1, name), x, out);
    }
}

/// Ranges of consecutive rows.
fn runs(rows: &[(usize, f32)]) -> impl Iterator<Item = std::ops::Range<usize>> {
    let runs = rows.chunk_by(|(one, _), (next, _)| one + 1 == *next);
    runs.map(|run| run[0].0..run[0].0 + run.len())
}
