//! Gated delta rule (arXiv 2412.06464), as in Qwen3-Next and Qwen3.5: convolved queries, keys and values; a state that
//! decays and is corrected; a norm of each head, and a gate.

use std::ops::Range;

use kvik_kernels::{
    Activation, Activations, Columns, ConvWeights, KeySharing, LinearInputs, LinearShape, Matrix, StateRule,
    activate, advance, convolve, decays, matmul_many, rms_norm_in_place, sigmoid, softplus, unit_norm,
};

use super::{
    Buffers, Inputs, LayerStates, Means, SSM_STEP_BIAS, conv_tensors, decay_tensors, load_conv, load_decay,
};
use crate::ModelError;
use crate::layer_tensor::{LayerTensor, Presence, SSM_NORM};
use crate::loader::LayerLoader;

/// The settings of a layer with the gated delta rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GatedDeltaShape {
    /// Number of positions that the convolution covers.
    pub(crate) width: usize,
    /// Number of heads of values.
    pub(crate) heads: usize,
    /// Number of heads of keys and queries.
    pub(crate) key_heads: usize,
    /// The key head that each head reads.
    pub(crate) sharing: KeySharing,
    /// Dimensions of keys, queries and values.
    pub(crate) dim: usize,
    /// The tensors of the projections.
    pub(crate) projections: DeltaProjections,
}

/// The tensors in which a file stores the projections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeltaProjections {
    /// Rates and time steps in a tensor each (Qwen3.5).
    Apart,
    /// Both in one, by key head (Qwen3-Next). Older files also have queries, keys, values and gates in one.
    Mixed,
}

pub(super) const INPUTS: &str = "attn_qkv.weight";
pub(super) const GATE: &str = "attn_gate.weight";
const MIXED: &str = "ssm_in.weight";
const RATES: &str = "ssm_beta.weight";
const STEPS: &str = "ssm_alpha.weight";
const RATES_AND_STEPS: &str = "ssm_ba.weight";

impl GatedDeltaShape {
    /// Number of values of all heads.
    pub(super) fn values(self) -> usize {
        self.heads * self.dim
    }

    /// Number of key elements of all heads.
    fn keys(self) -> usize {
        self.key_heads * self.dim
    }

    /// Channels of the convolution: queries, keys, values.
    pub(super) fn channels(self) -> usize {
        2 * self.keys() + self.values()
    }

    pub(super) fn state(self) -> LinearShape {
        LinearShape {
            rule: StateRule::Delta,
            heads: self.heads,
            key_heads: self.key_heads,
            sharing: self.sharing,
            key_dim: self.dim,
            value_dim: self.dim,
        }
    }

    pub(super) fn tensors(self, d_model: usize) -> Vec<LayerTensor> {
        let (channels, values, heads) = (self.channels(), self.values(), self.heads);
        let mut tensors =
            vec![(SSM_STEP_BIAS, 1, heads, Presence::Required), (SSM_NORM, 1, self.dim, Presence::Required)];
        tensors.extend(decay_tensors([1, heads]));
        tensors.extend(conv_tensors(channels, self.width, Presence::Absent));
        tensors.extend(match self.projections {
            DeltaProjections::Apart => vec![
                (INPUTS, channels, d_model, Presence::Required),
                (GATE, values, d_model, Presence::Required),
                (RATES, heads, d_model, Presence::Required),
                (STEPS, heads, d_model, Presence::Required),
            ],
            DeltaProjections::Mixed => vec![
                (INPUTS, channels, d_model, Presence::Optional),
                (GATE, values, d_model, Presence::Optional),
                (MIXED, channels + values, d_model, Presence::Optional),
                (RATES_AND_STEPS, 2 * heads, d_model, Presence::Required),
            ],
        });
        tensors
    }

    /// The rows of part `part` in a tensor that is ordered by key head, with these numbers of rows per part.
    fn by_key_head(self, parts: &[usize], part: usize) -> Vec<Range<usize>> {
        let all: usize = parts.iter().sum();
        let before: usize = parts[..part].iter().sum();
        (0..self.key_heads).map(|head| head * all + before..head * all + before + parts[part]).collect()
    }
}

/// The weights of a layer with the gated delta rule.
pub(crate) struct GatedDelta {
    shape: GatedDeltaShape,
    /// `[channels, d_model]`
    inputs: Matrix,
    /// `[values, d_model]`
    gate: Matrix,
    /// `[heads, d_model]` each.
    rates: Matrix,
    steps: Matrix,
    conv: ConvWeights,
    /// `[heads]` each.
    step_bias: Vec<f32>,
    decay: Vec<f32>,
    /// `[dim]`
    norm: Vec<f32>,
}

impl GatedDelta {
    pub(super) fn load(
        shape: GatedDeltaShape,
        layer: &mut LayerLoader<'_, '_>,
    ) -> Result<GatedDelta, ModelError> {
        let [inputs, gate] = load_inputs(shape, layer)?;
        let [rates, steps] = match shape.projections {
            DeltaProjections::Apart => [layer.matrix(RATES)?, layer.matrix(STEPS)?],
            DeltaProjections::Mixed => {
                let parts = [shape.heads / shape.key_heads; 2];
                let rows = |part| shape.by_key_head(&parts, part);
                layer.split(RATES_AND_STEPS, [&rows(0), &rows(1)])?
            }
        };
        Ok(GatedDelta {
            shape,
            inputs,
            gate,
            rates,
            steps,
            conv: load_conv(shape.width, layer)?,
            step_bias: layer.vector(SSM_STEP_BIAS)?,
            decay: load_decay(layer)?,
            norm: layer.vector(SSM_NORM)?,
        })
    }

    pub(super) fn matrices(&self) -> Vec<&Matrix> {
        vec![&self.inputs, &self.gate, &self.rates, &self.steps]
    }

    pub(super) fn project(&self, Means { pool, .. }: Means<'_>, inputs: &Activations, buffers: &mut Buffers) {
        let Buffers { inputs: Inputs { x, decays: left, rates }, gate, .. } = buffers;
        let n = inputs.rows();
        x.resize(n * self.inputs.rows(), 0.0);
        gate.resize(n * self.gate.rows(), 0.0);
        rates.resize(n * self.rates.rows(), 0.0);
        left.resize(n * self.steps.rows(), 0.0);
        let mut jobs = [
            (&self.inputs, &mut x[..]),
            (&self.gate, &mut gate[..]),
            (&self.rates, &mut rates[..]),
            (&self.steps, &mut left[..]),
        ];
        matmul_many(pool, &mut jobs, inputs);
        sigmoid(pool, rates);
        softplus(pool, left, &self.step_bias);
        decays(pool, left, &self.decay);
    }

    pub(super) fn recur(
        &self,
        Means { pool, norm_eps }: Means<'_>,
        states: &mut LayerStates<'_>,
        inputs: &Inputs,
        mixed: &mut Vec<f32>,
        out: &mut Vec<f32>,
    ) {
        let (shape, width) = (self.shape, self.shape.channels());
        let (keys, dim, heads) = (shape.keys(), shape.dim, shape.key_heads);
        mixed.resize(inputs.x.len(), 0.0);
        convolve(pool, states.arena, states.offset, &self.conv, states.rows, &inputs.x, mixed);
        unit_norm(pool, mixed, width, (0, heads, dim), norm_eps, 1.0 / (dim as f32).sqrt());
        unit_norm(pool, mixed, width, (keys, heads, dim), norm_eps, 1.0);
        let columns = |start| Columns { data: &mixed[..], width, start };
        let said = LinearInputs {
            q: columns(0),
            k: columns(keys),
            v: columns(2 * keys),
            decays: &inputs.decays,
            rates: &inputs.rates,
            skips: &[],
        };
        out.resize(inputs.x.len() / width * shape.values(), 0.0);
        let offset = states.offset + self.conv.state_floats();
        advance(pool, states.arena, offset, shape.state(), states.rows, said, out);
    }

    pub(super) fn finish(&self, means: Means<'_>, buffers: &mut Buffers, out: &mut Vec<f32>) {
        rms_norm_in_place(means.pool, out, &self.norm, means.norm_eps);
        activate(means.pool, Activation::SwiGlu, &mut buffers.gate, out);
        std::mem::swap(&mut buffers.gate, out);
    }
}

/// The projections to the input of the convolution, and to the gate.
fn load_inputs(shape: GatedDeltaShape, layer: &mut LayerLoader<'_, '_>) -> Result<[Matrix; 2], ModelError> {
    if !layer.has(MIXED) {
        let absent = [INPUTS, GATE].into_iter().find(|name| !layer.has(name));
        return match absent {
            Some(name) => Err(layer.missing(name)),
            None => Ok([layer.matrix(INPUTS)?, layer.matrix(GATE)?]),
        };
    }
    let values = shape.values() / shape.key_heads;
    let parts = [shape.dim, shape.dim, values, values];
    let rows = |part| shape.by_key_head(&parts, part);
    layer.split(MIXED, [&[rows(0), rows(1), rows(2)].concat(), &rows(3)])
}
