//! AltUp (arXiv 2301.13310): several residual streams, of which every layer computes the first. The others are
//! predicted from all of them before the layer, and corrected by the change of the first.

use kvik_kernels::{Matrix, add, add_bias, matmul, multiply, rms_norm, soft_cap, vectorised};

use super::Workspace;
use super::per_layer::PerLayer;
use crate::ModelError;
use crate::layer_tensor::{LayerTensor, Presence};
use crate::loader::{LayerLoader, Loader};

/// Maximum number of streams of a model.
pub(crate) const INPUTS_MAX: usize = 16;

/// Number of rows of one task.
const ROWS_PER_TASK: usize = 4;

/// Minimum mean square of a stream when it is rescaled to the norm of another.
const MEAN_SQUARE_MIN: f64 = 1e-5;

const CORRECT: &str = "altup_correct_coef.weight";
const CORRECT_SCALE: &str = "altup_correct_scale.weight";
const PREDICT: &str = "altup_predict_coef.weight";
const ROUTER: &str = "altup_router.weight";
const ROUTER_NORM: &str = "altup_router_norm.weight";
const SPLIT: &str = "altup_proj.weight";
const MERGE: &str = "altup_unembd_proj.weight";

pub(super) fn layer_tensors(inputs: usize, d_model: usize) -> [LayerTensor; 5] {
    let required = Presence::Required;
    [
        (CORRECT, inputs, inputs, required),
        (CORRECT_SCALE, 1, d_model, required),
        (PREDICT, inputs * inputs, inputs, required),
        (ROUTER, inputs, d_model, required),
        (ROUTER_NORM, 1, d_model, required),
    ]
}

pub(super) fn model_tensors(inputs: usize, d_model: usize) -> [LayerTensor; 2] {
    let rows = (inputs - 1) * d_model;
    [(SPLIT, rows, d_model, Presence::Required), (MERGE, rows, d_model, Presence::Required)]
}

/// Whether a tensor outside of the layers holds a matrix for every stream except the first.
pub(super) fn is_stack(name: &str) -> bool {
    [SPLIT, MERGE].contains(&name)
}

/// The weights of a layer.
pub(super) struct AltUp {
    inputs: usize,
    /// `[inputs, inputs]`
    correct: Vec<f32>,
    /// `[d_model]`
    correct_scale: Vec<f32>,
    /// `[inputs (of a predicted stream), inputs (of a stream it is predicted from), inputs]`
    predict: Vec<f32>,
    /// `[inputs, d_model]`
    router: Matrix,
    /// `[d_model]`
    router_norm: Vec<f32>,
}

#[derive(Default)]
pub(super) struct Buffers {
    /// The streams after a layer, `[n, inputs, d_model]`.
    streams: Vec<f32>,
    /// The streams predicted for a layer, `[n, inputs, d_model]`.
    pub(super) predicted: Vec<f32>,
    /// The output of the router, `[n, inputs]`.
    modalities: Vec<f32>,
    /// `[n, d_model]` each
    normed: Vec<f32>,
    other: Vec<f32>,
}

impl AltUp {
    pub(super) fn load(inputs: usize, layer: &mut LayerLoader<'_, '_>) -> Result<AltUp, ModelError> {
        Ok(AltUp {
            inputs,
            correct: layer.vector(CORRECT)?,
            correct_scale: layer.vector(CORRECT_SCALE)?,
            predict: layer.vector(PREDICT)?,
            // Not converted, since it determines all streams.
            router: layer.stored_matrix(ROUTER)?,
            router_norm: layer.vector(ROUTER_NORM)?,
        })
    }

    pub(super) fn router(&self) -> &Matrix {
        &self.router
    }

    /// Predicts all streams from the current ones, and leaves the first in `x`.
    pub(super) fn predict(&self, work: &mut Workspace<'_>, x: &mut [f32], buffers: &mut Buffers) {
        let (d, inputs) = (self.router.cols(), self.inputs);
        for (x, streams) in x.chunks_exact_mut(d).zip(buffers.streams.chunks_exact(inputs * d)) {
            x.copy_from_slice(&streams[..d]);
        }
        self.route(work, x, buffers);
        let Buffers { streams, predicted, modalities, .. } = buffers;
        predicted.resize(streams.len(), 0.0);
        work.pool.run_chunks(predicted, ROWS_PER_TASK * inputs * d, |task, rows| {
            for (row, predicted) in rows.chunks_exact_mut(inputs * d).enumerate() {
                let row = task * ROWS_PER_TASK + row;
                let streams = &streams[row * inputs * d..][..inputs * d];
                predicted.copy_from_slice(streams);
                for (to, predicted) in predicted.chunks_exact_mut(d).enumerate() {
                    for (from, stream) in streams.chunks_exact(d).enumerate() {
                        let coefficient =
                            self.coefficient(&self.predict[(to * inputs + from) * inputs..], modalities, row);
                        add_scaled(predicted, stream, coefficient);
                    }
                }
            }
        });
        for (x, predicted) in x.chunks_exact_mut(d).zip(predicted.chunks_exact(inputs * d)) {
            x.copy_from_slice(&predicted[..d]);
        }
    }

    /// Corrects all streams by the layer's change of the first, which is now `x`.
    pub(super) fn correct(&self, work: &mut Workspace<'_>, x: &[f32], buffers: &mut Buffers) {
        let (d, inputs) = (self.router.cols(), self.inputs);
        self.route(work, x, buffers);
        let Buffers { streams, predicted, modalities, .. } = buffers;
        streams.resize(predicted.len(), 0.0);
        work.pool.run_chunks(streams, ROWS_PER_TASK * inputs * d, |task, rows| {
            for (row, streams) in rows.chunks_exact_mut(inputs * d).enumerate() {
                let row = task * ROWS_PER_TASK + row;
                let predicted = &predicted[row * inputs * d..][..inputs * d];
                let (x, active) = (&x[row * d..][..d], &predicted[..d]);
                streams.copy_from_slice(predicted);
                for (to, stream) in streams.chunks_exact_mut(d).enumerate() {
                    let coefficient = self.coefficient(&self.correct[to * inputs..], modalities, row) + 1.0;
                    add_scaled_difference(stream, x, active, coefficient);
                }
            }
        });
    }

    /// Adds the output of the per-layer embedding of layer `index`, computed from the first stream, to all others;
    /// overwrites `x`.
    pub(super) fn add_to_others(
        &self,
        work: &mut Workspace<'_>,
        (index, per_layer): (usize, &PerLayer),
        x: &mut [f32],
        buffers: &mut super::Buffers,
    ) {
        let (d, inputs) = (self.router.cols(), self.inputs);
        let streams = &mut buffers.altup.streams;
        for (x, streams) in x.chunks_exact_mut(d).zip(streams.chunks_exact(inputs * d)) {
            for ((x, stream), scale) in x.iter_mut().zip(streams).zip(&self.correct_scale) {
                *x = stream * scale;
            }
        }
        per_layer.compute(work, index, x, &mut buffers.per_layer);
        let outputs = buffers.per_layer.output.chunks_exact(d);
        for (streams, output) in streams.chunks_exact_mut(inputs * d).zip(outputs) {
            add_bias(work.pool, &mut streams[d..], output);
        }
    }

    /// `tanh(router(norm(x) / d_model))`
    fn route(&self, work: &mut Workspace<'_>, x: &[f32], buffers: &mut Buffers) {
        let Buffers { modalities, normed, .. } = buffers;
        let d = self.router.cols();
        normed.resize(x.len(), 0.0);
        rms_norm(work.pool, x, &self.router_norm, work.norm_eps, normed);
        multiply(work.pool, normed, 1.0 / d as f32);
        work.inputs.set(work.pool, normed, d, &[&self.router]);
        modalities.resize(work.inputs.rows() * self.inputs, 0.0);
        matmul(work.pool, &self.router, work.inputs, modalities);
        soft_cap(work.pool, modalities, 1.0);
    }

    /// The dot product of coefficients with the router's output for a row.
    fn coefficient(&self, coefficients: &[f32], modalities: &[f32], row: usize) -> f32 {
        let modalities = &modalities[row * self.inputs..][..self.inputs];
        coefficients.iter().zip(modalities).map(|(coefficient, modality)| coefficient * modality).sum()
    }
}

fn add_scaled(to: &mut [f32], x: &[f32], scale: f32) {
    vectorised(
        #[inline(always)]
        || to.iter_mut().zip(x).for_each(|(to, x)| *to += x * scale),
    );
}

fn add_scaled_difference(to: &mut [f32], x: &[f32], y: &[f32], scale: f32) {
    vectorised(
        #[inline(always)]
        || to.iter_mut().zip(x).zip(y).for_each(|((to, x), y)| *to += (x - y) * scale),
    );
}

/// Splits the embedding into streams, and merges the streams into one hidden state.
pub(super) struct Streams {
    /// `[inputs - 1][d_model, d_model]` each
    split: Vec<Matrix>,
    merge: Vec<Matrix>,
}

impl Streams {
    pub(super) fn load(inputs: usize, loader: &mut Loader<'_>) -> Result<Streams, ModelError> {
        Ok(Streams { split: loader.stack(SPLIT, inputs - 1)?, merge: loader.stack(MERGE, inputs - 1)? })
    }

    pub(super) fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        self.split.iter().chain(&self.merge)
    }

    /// The first stream is the embedding `x`, `[n, d_model]`; the others are products of it, rescaled to its norm.
    pub(super) fn split(&self, work: &mut Workspace<'_>, x: &[f32], buffers: &mut Buffers) {
        let Buffers { streams, other, .. } = buffers;
        let (d, inputs) = (self.split[0].cols(), self.split.len() + 1);
        streams.resize(x.len() * inputs, 0.0);
        for (x, streams) in x.chunks_exact(d).zip(streams.chunks_exact_mut(inputs * d)) {
            streams[..d].copy_from_slice(x);
        }
        other.resize(x.len(), 0.0);
        for (index, matrix) in self.split.iter().enumerate() {
            work.inputs.set(work.pool, x, d, &[matrix]);
            matmul(work.pool, matrix, work.inputs, other);
            let rows = x.chunks_exact(d).zip(other.chunks_exact(d));
            for ((x, other), streams) in rows.zip(streams.chunks_exact_mut(inputs * d)) {
                let to = &mut streams[(index + 1) * d..][..d];
                to.copy_from_slice(other);
                multiply(work.pool, to, ratio(x, other));
            }
        }
    }

    /// Leaves in `x` the mean of the first stream and of products of the others, rescaled to the norm of the first.
    pub(super) fn merge(&self, work: &mut Workspace<'_>, x: &mut [f32], buffers: &mut Buffers) {
        let Buffers { streams, other, normed: product, .. } = buffers;
        let (d, inputs) = (self.merge[0].cols(), self.merge.len() + 1);
        for (x, streams) in x.chunks_exact_mut(d).zip(streams.chunks_exact(inputs * d)) {
            x.copy_from_slice(&streams[..d]);
        }
        product.resize(x.len(), 0.0);
        for (index, matrix) in self.merge.iter().enumerate() {
            other.clear();
            for streams in streams.chunks_exact(inputs * d) {
                other.extend_from_slice(&streams[(index + 1) * d..][..d]);
            }
            work.inputs.set(work.pool, other, d, &[matrix]);
            matmul(work.pool, matrix, work.inputs, product);
            let rows = product.chunks_exact_mut(d).zip(streams.chunks_exact(inputs * d));
            for (product, streams) in rows {
                let factor = ratio(&streams[..d], product);
                multiply(work.pool, product, factor);
            }
            add(work.pool, x, product);
        }
        multiply(work.pool, x, 1.0 / inputs as f32);
    }
}

/// The factor that rescales `other` to the norm of `x`.
fn ratio(x: &[f32], other: &[f32]) -> f32 {
    let mean_square = |x: &[f32]| {
        let sum: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        sum / x.len() as f64
    };
    (mean_square(x) / mean_square(other).max(MEAN_SQUARE_MIN)).sqrt() as f32
}
