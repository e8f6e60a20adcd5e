//! The feed-forward half of a layer: which kinds there are, the tensors of each, and how each computes.
//!
//! A new kind (GeGLU, a mixture of experts) is a variant of both enums and a function here.

use kvik_kernels::{Activation, Activations, Matrix, Pool, activate, matmul, matmul_many};

use super::ModelError;

/// The kind of a feed-forward layer, and its widths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FeedForwardShape {
    /// `down(silu(gate(h)) * up(h))`
    SwiGlu {
        /// Rows of gate and up.
        d_ff: usize,
    },
}

impl FeedForwardShape {
    /// Its matrices: name in the layer, rows, columns.
    pub(crate) fn tensors(self, d_model: usize) -> Vec<(&'static str, usize, usize)> {
        match self {
            FeedForwardShape::SwiGlu { d_ff } => vec![
                ("ffn_gate.weight", d_ff, d_model),
                ("ffn_up.weight", d_ff, d_model),
                ("ffn_down.weight", d_model, d_ff),
            ],
        }
    }

    /// Loads its matrices by their names in the layer.
    pub(crate) fn load(
        self,
        mut matrix: impl FnMut(&str) -> Result<Matrix, ModelError>,
    ) -> Result<FeedForward, ModelError> {
        match self {
            FeedForwardShape::SwiGlu { .. } => Ok(FeedForward::SwiGlu {
                gate: matrix("ffn_gate.weight")?,
                up: matrix("ffn_up.weight")?,
                down: matrix("ffn_down.weight")?,
            }),
        }
    }
}

/// The weights of a feed-forward layer.
pub(crate) enum FeedForward {
    /// [`FeedForwardShape::SwiGlu`]
    SwiGlu {
        /// `[d_ff, d_model]`
        gate: Matrix,
        /// `[d_ff, d_model]`
        up: Matrix,
        /// `[d_model, d_ff]`
        down: Matrix,
    },
}

/// Adds what adapters say to a product: the matrix by its name in the layer, its input, its output.
pub(crate) type Adapt<'a> = dyn FnMut(&'static str, &[f32], &mut [f32]) + 'a;

/// Buffers that the feed-forward layers of a pass share.
#[derive(Default)]
pub(crate) struct Buffers {
    /// `[n, d_ff]` each.
    gate: Vec<f32>,
    up: Vec<f32>,
}

impl FeedForward {
    /// All of its matrices.
    pub(crate) fn matrices(&self) -> Vec<&Matrix> {
        match self {
            FeedForward::SwiGlu { gate, up, down } => vec![gate, up, down],
        }
    }

    /// Replaces normed rows by the layer's output, `h`: `[n, d_model]`.
    pub(crate) fn forward(
        &self,
        pool: &Pool,
        h: &mut [f32],
        inputs: &mut Activations,
        buffers: &mut Buffers,
        adapt: &mut Adapt<'_>,
    ) {
        match self {
            FeedForward::SwiGlu { gate, up, down } => {
                swi_glu(pool, [gate, up, down], h, inputs, buffers, adapt);
            }
        }
    }
}

/// `h = down(silu(gate(h)) * up(h))`
fn swi_glu(
    pool: &Pool,
    [gate, up, down]: [&Matrix; 3],
    h: &mut [f32],
    inputs: &mut Activations,
    buffers: &mut Buffers,
    adapt: &mut Adapt<'_>,
) {
    let Buffers { gate: gated, up: projected } = buffers;
    let n = h.len() / gate.cols();
    inputs.set(pool, h, gate.cols(), &[gate, up]);
    gated.resize(n * gate.rows(), 0.0);
    projected.resize(n * up.rows(), 0.0);
    matmul_many(pool, &mut [(gate, &mut gated[..]), (up, &mut projected[..])], inputs);
    adapt("ffn_gate.weight", h, gated);
    adapt("ffn_up.weight", h, projected);
    activate(pool, Activation::SwiGlu, gated, projected);
    inputs.set(pool, gated, down.cols(), &[down]);
    matmul(pool, down, inputs, h);
    adapt("ffn_down.weight", gated, h);
}
