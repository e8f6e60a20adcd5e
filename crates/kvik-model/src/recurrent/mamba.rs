//! Mamba 2 (arXiv 2405.21060), as in Granite 4 and Nemotron-H: a selective scan of convolved values, keys and queries
//! (`x`, `B` and `C` in the paper), a gate, and a grouped norm.

use kvik_kernels::{
    Activation, Activations, Columns, ConvWeights, KeySharing, LinearInputs, LinearShape, Matrix, StateRule,
    activate, advance, convolve, decays, matmul_many, rms_norm_groups, softplus,
};

use super::{
    Buffers, Inputs, LayerStates, Means, SSM_STEP_BIAS, conv_tensors, decay_tensors, load_conv, load_decay,
};
use crate::ModelError;
use crate::layer_tensor::{LayerTensor, Presence, SSM_NORM};
use crate::loader::LayerLoader;

/// The settings of a Mamba 2 layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MambaShape {
    /// Number of positions that the convolution covers.
    pub(crate) width: usize,
    /// Number of values of all heads.
    pub(crate) inner: usize,
    pub(crate) heads: usize,
    /// Number of heads of keys and queries, and of groups of the norm.
    pub(crate) groups: usize,
    /// Dimensions of keys and queries.
    pub(crate) key_dim: usize,
}

/// The projections in one tensor: gate, input of the convolution, time steps.
const INPUT: &str = "ssm_in.weight";
/// Factor of a value that is added to its output, `[heads]`.
const SKIP: &str = "ssm_d";

impl MambaShape {
    /// Number of key elements of all groups.
    fn keys(self) -> usize {
        self.groups * self.key_dim
    }

    /// Channels of the convolution: values, keys, queries.
    pub(super) fn channels(self) -> usize {
        self.inner + 2 * self.keys()
    }

    pub(super) fn state(self) -> LinearShape {
        LinearShape {
            rule: StateRule::Scan,
            heads: self.heads,
            key_heads: self.groups,
            sharing: KeySharing::Grouped,
            key_dim: self.key_dim,
            value_dim: self.inner / self.heads,
        }
    }

    pub(super) fn tensors(self, d_model: usize) -> Vec<LayerTensor> {
        let (channels, heads) = (self.channels(), self.heads);
        let mut tensors = vec![
            (INPUT, self.inner + channels + heads, d_model, Presence::Required),
            (SSM_STEP_BIAS, 1, heads, Presence::Required),
            (SKIP, heads, 1, Presence::Required),
            (SSM_NORM, self.groups, self.inner / self.groups, Presence::Required),
        ];
        tensors.extend(decay_tensors([heads, 1]));
        tensors.extend(conv_tensors(channels, self.width, Presence::Optional));
        tensors
    }

    pub(super) fn vectors_in_rows(self) -> [(&'static str, usize); 2] {
        [(SKIP, self.heads), (SSM_NORM, self.groups)]
    }
}

/// The weights of a Mamba 2 layer.
pub(crate) struct Mamba {
    shape: MambaShape,
    /// `[inner, d_model]`
    gate: Matrix,
    /// `[channels, d_model]`
    inputs: Matrix,
    /// `[heads, d_model]`
    steps: Matrix,
    conv: ConvWeights,
    /// `[heads]` each.
    step_bias: Vec<f32>,
    decay: Vec<f32>,
    skip: Vec<f32>,
    /// `[groups, inner / groups]`
    norm: Vec<f32>,
}

impl Mamba {
    pub(super) fn load(shape: MambaShape, layer: &mut LayerLoader<'_, '_>) -> Result<Mamba, ModelError> {
        let [gate, inputs, steps] = layer.cut(INPUT, [shape.inner, shape.channels(), shape.heads])?;
        Ok(Mamba {
            shape,
            gate,
            inputs,
            steps,
            conv: load_conv(shape.width, layer)?,
            step_bias: layer.vector(SSM_STEP_BIAS)?,
            decay: load_decay(layer)?,
            skip: layer.vector(SKIP)?,
            norm: layer.vector(SSM_NORM)?,
        })
    }

    pub(super) fn matrices(&self) -> Vec<&Matrix> {
        vec![&self.inputs, &self.gate, &self.steps]
    }

    pub(super) fn project(&self, Means { pool, .. }: Means<'_>, inputs: &Activations, buffers: &mut Buffers) {
        let Buffers { inputs: Inputs { x, decays: left, rates }, gate, .. } = buffers;
        let n = inputs.rows();
        x.resize(n * self.inputs.rows(), 0.0);
        gate.resize(n * self.gate.rows(), 0.0);
        rates.resize(n * self.steps.rows(), 0.0);
        let mut jobs =
            [(&self.inputs, &mut x[..]), (&self.gate, &mut gate[..]), (&self.steps, &mut rates[..])];
        matmul_many(pool, &mut jobs, inputs);
        softplus(pool, rates, &self.step_bias);
        left.clone_from(rates);
        decays(pool, left, &self.decay);
    }

    pub(super) fn recur(
        &self,
        Means { pool, .. }: Means<'_>,
        states: &mut LayerStates<'_>,
        inputs: &Inputs,
        mixed: &mut Vec<f32>,
        out: &mut Vec<f32>,
    ) {
        let (shape, width) = (self.shape, self.shape.channels());
        mixed.resize(inputs.x.len(), 0.0);
        convolve(pool, states.arena, states.offset, &self.conv, states.rows, &inputs.x, mixed);
        let columns = |start| Columns { data: &mixed[..], width, start };
        let said = LinearInputs {
            q: columns(shape.inner + shape.keys()),
            k: columns(shape.inner),
            v: columns(0),
            decays: &inputs.decays,
            rates: &inputs.rates,
            skips: &self.skip,
        };
        out.resize(inputs.x.len() / width * shape.inner, 0.0);
        let offset = states.offset + self.conv.state_floats();
        advance(pool, states.arena, offset, shape.state(), states.rows, said, out);
    }

    pub(super) fn finish(&self, means: Means<'_>, buffers: &mut Buffers, out: &mut Vec<f32>) {
        activate(means.pool, Activation::SwiGlu, &mut buffers.gate, out);
        std::mem::swap(&mut buffers.gate, out);
        let group = self.shape.inner / self.shape.groups;
        rms_norm_groups(means.pool, out, &self.norm, group, means.norm_eps);
    }
}
