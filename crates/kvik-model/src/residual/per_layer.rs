//! Per-layer embeddings: a second embedding of the token for every layer, which the layer gates and adds at its end.

use std::f32::consts::FRAC_1_SQRT_2;

use kvik_kernels::{Activation, Matrix, activate, add, dequantize, matmul, multiply, rms_norm_in_place};
use kvik_text::files::TensorView;

use super::Workspace;
use crate::ModelError;
use crate::layer_tensor::{LayerTensor, Presence};
use crate::loader::{LayerLoader, Loader};

/// The embeddings of all layers, whose rows are read from the file: `[vocab, layers * width]`; checkpoints omit the
/// last tokens.
pub(crate) const TABLE: &str = "per_layer_token_embd.weight";
const PROJECTION: &str = "per_layer_model_proj.weight";
const PROJECTION_NORM: &str = "per_layer_proj_norm.weight";
const GATE: &str = "inp_gate.weight";
const OUTPUT: &str = "proj.weight";
const NORM: &str = "post_norm.weight";

pub(super) fn layer_tensors(width: usize, d_model: usize) -> [LayerTensor; 3] {
    let required = Presence::Required;
    [(GATE, width, d_model, required), (OUTPUT, d_model, width, required), (NORM, 1, d_model, required)]
}

pub(super) fn model_tensors([vocab, layers, d_model]: [usize; 3], width: usize) -> [LayerTensor; 3] {
    let (all, required) = (layers.saturating_mul(width), Presence::Required);
    [
        (TABLE, vocab, all, required),
        (PROJECTION, all, d_model, required),
        (PROJECTION_NORM, 1, width, required),
    ]
}

/// Computes the inputs of all layers.
pub(super) struct PerLayerInputs {
    width: usize,
    /// `[layers * width, d_model]`
    projection: Matrix,
    /// `[width]`
    norm: Vec<f32>,
}

#[derive(Default)]
pub(super) struct Buffers {
    /// `[n, layers, width]`
    pub(super) inputs: Vec<f32>,
    /// Rows of the table, `[n, layers, width]`.
    looked_up: Vec<f32>,
    /// The rows of one layer, `[n, width]`.
    input: Vec<f32>,
    /// `[n, width]`
    gate: Vec<f32>,
    /// The layer's contribution, `[n, d_model]`.
    pub(super) output: Vec<f32>,
}

impl PerLayerInputs {
    pub(super) fn load(width: usize, loader: &mut Loader<'_>) -> Result<PerLayerInputs, ModelError> {
        // Its rows are read from the file at every step.
        loader.take(TABLE)?;
        Ok(PerLayerInputs {
            width,
            projection: loader.matrix(PROJECTION)?,
            norm: loader.vector(PROJECTION_NORM)?,
        })
    }

    pub(super) fn matrix(&self) -> &Matrix {
        &self.projection
    }

    /// Computes the inputs from the embeddings `x`, `[n, d_model]`, and the rows of `table` that belong to `tokens`.
    pub(super) fn compute(
        &self,
        work: &mut Workspace<'_>,
        (tokens, table): (impl Iterator<Item = u32>, &TensorView<'_>),
        x: &[f32],
        buffers: &mut Buffers,
    ) {
        let Buffers { inputs, looked_up, .. } = buffers;
        let (d_model, all) = (self.projection.cols(), self.projection.rows());
        work.inputs.set(work.pool, x, d_model, &[&self.projection]);
        inputs.resize(work.inputs.rows() * all, 0.0);
        matmul(work.pool, &self.projection, work.inputs, inputs);
        multiply(work.pool, inputs, 1.0 / (d_model as f32).sqrt());
        rms_norm_in_place(work.pool, inputs, &self.norm, work.norm_eps);
        looked_up.resize(inputs.len(), 0.0);
        let row_bytes = table.data.len() / table.rows;
        for (token, row) in tokens.zip(looked_up.chunks_exact_mut(all)) {
            let start = token as usize * row_bytes;
            match table.data.get(start..start + row_bytes) {
                Some(stored) => dequantize(table.ty, stored, row),
                // Tokens of images and audio, which have no row in checkpoints, and a row of zeros in GGUF files.
                None => row.fill(0.0),
            }
        }
        multiply(work.pool, looked_up, (self.width as f32).sqrt());
        add(work.pool, inputs, looked_up);
        multiply(work.pool, inputs, FRAC_1_SQRT_2);
    }
}

/// The weights of one layer for its per-layer input.
pub(super) struct PerLayer {
    /// `[width, d_model]`
    gate: Matrix,
    /// `[d_model, width]`
    output: Matrix,
    /// `[d_model]`
    norm: Vec<f32>,
}

impl PerLayer {
    pub(super) fn load(layer: &mut LayerLoader<'_, '_>) -> Result<PerLayer, ModelError> {
        Ok(PerLayer { gate: layer.matrix(GATE)?, output: layer.matrix(OUTPUT)?, norm: layer.vector(NORM)? })
    }

    pub(super) fn matrices(&self) -> [&Matrix; 2] {
        [&self.gate, &self.output]
    }

    /// The contribution of layer `index` for rows `x`, `[n, d_model]`: `norm(output(gelu(gate(x)) * input))`.
    pub(super) fn compute(&self, work: &mut Workspace<'_>, index: usize, x: &[f32], buffers: &mut Buffers) {
        let Buffers { inputs, input, gate, output, .. } = buffers;
        let (width, n) = (self.gate.rows(), x.len() / self.gate.cols());
        work.inputs.set(work.pool, x, self.gate.cols(), &[&self.gate]);
        gate.resize(n * width, 0.0);
        matmul(work.pool, &self.gate, work.inputs, gate);
        input.clear();
        for row in inputs.chunks_exact(inputs.len().checked_div(n).unwrap_or(width)) {
            input.extend_from_slice(&row[index * width..(index + 1) * width]);
        }
        activate(work.pool, Activation::GeGlu, gate, input);
        work.inputs.set(work.pool, gate, width, &[&self.output]);
        output.resize(x.len(), 0.0);
        matmul(work.pool, &self.output, work.inputs, output);
        rms_norm_in_place(work.pool, output, &self.norm, work.norm_eps);
    }
}
