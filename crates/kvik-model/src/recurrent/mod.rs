//! Recurrent layers, which mix positions by a state instead of attention: their kinds, the tensors of each, and how
//! each computes.
//!
//! A layer first projects its rows to their inputs to the state, then updates the state with them in order, and then
//! finishes the outputs. Only the middle part depends on sequences; tentative rows are applied later from the retained
//! projections, by the same operations.

mod gated_delta;
mod inputs;
mod mamba;
mod short_conv;
mod states;
#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod tests;

use kvik_kernels::{Activations, ConvWeights, Matrix, Pool, StateArena, StateRows};

use super::ModelError;
use super::layer_tensor::{LayerTensor, Presence};
use super::loader::LayerLoader;

pub(crate) use gated_delta::{DeltaProjections, GatedDelta, GatedDeltaShape};
pub(crate) use inputs::{Inputs, Tried, TriedRows};
pub(crate) use mamba::{Mamba, MambaShape};
pub(crate) use short_conv::{ShortConv, ShortConvShape};
pub(crate) use states::BatchStates;

/// The kind of a recurrent layer, and its settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum RecurrentShape {
    /// A convolution of the last few positions between two gates (LFM2).
    ShortConv(ShortConvShape),
    /// The gated delta rule (Qwen3-Next, Qwen3.5).
    GatedDelta(GatedDeltaShape),
    /// A selective scan (Mamba 2).
    Mamba(MambaShape),
}

impl RecurrentShape {
    /// Its tensors, except the projection back to the stream.
    pub(crate) fn tensors(self, d_model: usize) -> Vec<LayerTensor> {
        match self {
            RecurrentShape::ShortConv(shape) => shape.tensors(d_model),
            RecurrentShape::GatedDelta(shape) => shape.tensors(d_model),
            RecurrentShape::Mamba(shape) => shape.tensors(d_model),
        }
    }

    /// The name of the projection back to the stream, and its columns.
    pub(crate) fn output(self, d_model: usize) -> (&'static str, usize) {
        match self {
            RecurrentShape::ShortConv(_) => (short_conv::OUTPUT, d_model),
            RecurrentShape::GatedDelta(shape) => (SSM_OUTPUT, shape.values()),
            RecurrentShape::Mamba(shape) => (SSM_OUTPUT, shape.inner),
        }
    }

    /// Vectors among its tensors that are stored in rows, with the number of rows: checkpoints store them flat.
    pub(crate) fn vectors_in_rows(self) -> Vec<(&'static str, usize)> {
        match self {
            RecurrentShape::Mamba(shape) => shape.vectors_in_rows().to_vec(),
            RecurrentShape::ShortConv(_) | RecurrentShape::GatedDelta(_) => Vec::new(),
        }
    }

    /// Number of floats of the layer's state.
    pub(crate) fn state_floats(self, d_model: usize) -> usize {
        match self {
            RecurrentShape::ShortConv(shape) => (shape.width - 1) * d_model,
            RecurrentShape::GatedDelta(shape) => {
                (shape.width - 1) * shape.channels() + shape.state().state_floats()
            }
            RecurrentShape::Mamba(shape) => {
                (shape.width - 1) * shape.channels() + shape.state().state_floats()
            }
        }
    }

    /// Loads its tensors by their names in the layer.
    pub(crate) fn load(self, layer: &mut LayerLoader<'_, '_>) -> Result<Recurrent, ModelError> {
        Ok(match self {
            RecurrentShape::ShortConv(shape) => Recurrent::ShortConv(ShortConv::load(shape, layer)?),
            RecurrentShape::GatedDelta(shape) => Recurrent::GatedDelta(GatedDelta::load(shape, layer)?),
            RecurrentShape::Mamba(shape) => Recurrent::Mamba(Mamba::load(shape, layer)?),
        })
    }
}

/// Whether a tensor, by its name in its layer, belongs to recurrent layers. Adapters cannot change those.
pub(crate) fn is_recurrent(name: &str) -> bool {
    name.starts_with("ssm_") || name.starts_with("shortconv.") || GATE_AND_INPUTS.contains(&name)
}

/// Matrices of recurrent layers whose names have no such prefix.
const GATE_AND_INPUTS: [&str; 2] = [gated_delta::GATE, gated_delta::INPUTS];

/// The weights of a recurrent layer, except the projection back to the stream.
pub(crate) enum Recurrent {
    /// [`RecurrentShape::ShortConv`]
    ShortConv(ShortConv),
    /// [`RecurrentShape::GatedDelta`]
    GatedDelta(GatedDelta),
    /// [`RecurrentShape::Mamba`]
    Mamba(Mamba),
}

/// Buffers that the recurrent layers of a pass share.
#[derive(Default)]
pub(crate) struct Buffers {
    /// The inputs of rows to the state.
    pub(crate) inputs: Inputs,
    /// The outputs of the convolution, `[n, channels]`.
    mixed: Vec<f32>,
    /// The factors of the outputs, `[n, values]`.
    gate: Vec<f32>,
    /// Intermediate projections, `[n, ..]`.
    spare: Vec<f32>,
}

/// The part of a layer in the states of a batch.
pub(crate) struct LayerStates<'a> {
    pub(crate) arena: &'a mut StateArena,
    /// Its offset in each state.
    pub(crate) offset: usize,
    pub(crate) rows: &'a [StateRows<'a>],
}

/// The context that all kinds need.
#[derive(Clone, Copy)]
pub(crate) struct Means<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) norm_eps: f32,
}

impl Recurrent {
    /// All of its matrices.
    pub(crate) fn matrices(&self) -> Vec<&Matrix> {
        match self {
            Recurrent::ShortConv(layer) => layer.matrices(),
            Recurrent::GatedDelta(layer) => layer.matrices(),
            Recurrent::Mamba(layer) => layer.matrices(),
        }
    }

    /// Projects normed rows `h`, `[n, d_model]`, to their inputs to the state.
    pub(crate) fn project(
        &self,
        means: Means<'_>,
        h: &[f32],
        inputs: &mut Activations,
        buffers: &mut Buffers,
    ) {
        let matrices = self.matrices();
        inputs.set(means.pool, h, matrices[0].cols(), &matrices);
        match self {
            Recurrent::ShortConv(layer) => layer.project(means, inputs, buffers),
            Recurrent::GatedDelta(layer) => layer.project(means, inputs, buffers),
            Recurrent::Mamba(layer) => layer.project(means, inputs, buffers),
        }
    }

    /// Updates the state with the rows, in order, and reads it after each: `out` becomes `[n, values]`.
    pub(crate) fn recur(
        &self,
        means: Means<'_>,
        states: &mut LayerStates<'_>,
        inputs: &Inputs,
        mixed: &mut Vec<f32>,
        out: &mut Vec<f32>,
    ) {
        match self {
            Recurrent::ShortConv(layer) => layer.recur(means, states, inputs, out),
            Recurrent::GatedDelta(layer) => layer.recur(means, states, inputs, mixed, out),
            Recurrent::Mamba(layer) => layer.recur(means, states, inputs, mixed, out),
        }
    }

    /// Computes the input of the projection back to the stream from what was read.
    pub(crate) fn finish(&self, means: Means<'_>, buffers: &mut Buffers, out: &mut Vec<f32>) {
        match self {
            Recurrent::ShortConv(layer) => layer.finish(means, buffers, out),
            Recurrent::GatedDelta(layer) => layer.finish(means, buffers, out),
            Recurrent::Mamba(layer) => layer.finish(means, buffers, out),
        }
    }

    /// All three, from normed rows to the input of the projection back; the inputs of tentative rows are retained in
    /// `tried`.
    pub(crate) fn forward(
        &self,
        means: Means<'_>,
        states: &mut LayerStates<'_>,
        h: &[f32],
        (activations, buffers): (&mut Activations, &mut Buffers),
        tried: &mut Tried,
        out: &mut Vec<f32>,
    ) {
        self.project(means, h, activations, buffers);
        let Buffers { inputs, mixed, .. } = buffers;
        tried.keep(states.rows, inputs, h.len() / self.d_model());
        self.recur(means, states, inputs, mixed, out);
        self.finish(means, buffers, out);
    }

    fn d_model(&self) -> usize {
        self.matrices()[0].cols()
    }
}

/// Projection back to the stream of layers with a state matrix.
const SSM_OUTPUT: &str = "ssm_out.weight";
/// Their convolution: weights `[channels, width]`, biases `[channels]`.
const SSM_CONV: [&str; 2] = ["ssm_conv1d.weight", "ssm_conv1d.bias"];
/// Added to time steps before they are made positive, `[heads]`.
const SSM_STEP_BIAS: &str = "ssm_dt.bias";
/// Factor of time steps in the decay, `[heads]`; and the logarithm of its negative, in checkpoints.
const SSM_DECAY: &str = "ssm_a";
const SSM_DECAY_LOG: &str = "ssm_a_log";

/// The convolution before a state matrix.
fn load_conv(width: usize, layer: &mut LayerLoader<'_, '_>) -> Result<ConvWeights, ModelError> {
    let bias = layer.optional_vector(SSM_CONV[1])?;
    Ok(ConvWeights::new(&layer.vector(SSM_CONV[0])?, width, bias, true))
}

/// The factors of time steps, `[heads]`.
fn load_decay(layer: &mut LayerLoader<'_, '_>) -> Result<Vec<f32>, ModelError> {
    match layer.optional_vector(SSM_DECAY_LOG)? {
        Some(logs) if layer.has(SSM_DECAY) => Err(ModelError::StoredTwice {
            tensor: layer.name(SSM_DECAY),
            other: format!("{} of {} heads", layer.name(SSM_DECAY_LOG), logs.len()),
        }),
        Some(logs) => Ok(logs.into_iter().map(|log| -log.exp()).collect()),
        None if layer.has(SSM_DECAY) => layer.vector(SSM_DECAY),
        None => Err(layer.missing(SSM_DECAY)),
    }
}

/// Both forms of the decay factors, of which `[rows, cols]` is that of GGUF.
fn decay_tensors([rows, cols]: [usize; 2]) -> [LayerTensor; 2] {
    [(SSM_DECAY, rows, cols, Presence::Optional), (SSM_DECAY_LOG, 1, rows * cols, Presence::Optional)]
}

/// The tensors of the convolution.
fn conv_tensors(channels: usize, width: usize, bias: Presence) -> [LayerTensor; 2] {
    [(SSM_CONV[0], channels, width, Presence::Required), (SSM_CONV[1], 1, channels, bias)]
}
