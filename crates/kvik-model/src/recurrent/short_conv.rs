//! Short convolution (LFM2): `c * conv(b * x)` of three projections of a row.

use kvik_kernels::{Activations, ConvWeights, Matrix, convolve, matmul_many, product};

use super::{Buffers, Inputs, LayerStates, Means};
use crate::ModelError;
use crate::layer_tensor::{LayerTensor, Presence};
use crate::loader::LayerLoader;

/// The settings of a short convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShortConvShape {
    /// Channels: the width of the stream.
    pub(crate) channels: usize,
    /// Number of positions that a row covers, including its own.
    pub(crate) width: usize,
}

/// The projections in one tensor: `b`, `c`, `x`.
const INPUT: &str = "shortconv.in_proj.weight";
const CONV: &str = "shortconv.conv.weight";
pub(super) const OUTPUT: &str = "shortconv.out_proj.weight";

impl ShortConvShape {
    pub(super) fn tensors(self, d_model: usize) -> Vec<LayerTensor> {
        vec![
            (INPUT, 3 * d_model, d_model, Presence::Required),
            (CONV, d_model, self.width, Presence::Required),
        ]
    }
}

/// The weights of a short convolution.
pub(crate) struct ShortConv {
    /// `[d_model, d_model]` each.
    b: Matrix,
    c: Matrix,
    x: Matrix,
    conv: ConvWeights,
}

impl ShortConv {
    pub(super) fn load(
        shape: ShortConvShape,
        layer: &mut LayerLoader<'_, '_>,
    ) -> Result<ShortConv, ModelError> {
        let [b, c, x] = layer.cut(INPUT, [shape.channels; 3])?;
        let conv = ConvWeights::new(&layer.vector(CONV)?, shape.width, None, false);
        Ok(ShortConv { b, c, x, conv })
    }

    pub(super) fn matrices(&self) -> Vec<&Matrix> {
        vec![&self.b, &self.c, &self.x]
    }

    pub(super) fn project(&self, Means { pool, .. }: Means<'_>, inputs: &Activations, buffers: &mut Buffers) {
        let Buffers { inputs: said, gate, spare, .. } = buffers;
        let len = inputs.rows() * self.b.rows();
        [&mut said.x, &mut *gate, &mut *spare].into_iter().for_each(|buffer| buffer.resize(len, 0.0));
        let mut jobs = [(&self.b, &mut said.x[..]), (&self.c, &mut gate[..]), (&self.x, &mut spare[..])];
        matmul_many(pool, &mut jobs, inputs);
        product(pool, &mut said.x, spare);
        said.decays.clear();
        said.rates.clear();
    }

    pub(super) fn recur(
        &self,
        means: Means<'_>,
        states: &mut LayerStates<'_>,
        inputs: &Inputs,
        out: &mut Vec<f32>,
    ) {
        out.resize(inputs.x.len(), 0.0);
        convolve(means.pool, states.arena, states.offset, &self.conv, states.rows, &inputs.x, out);
    }

    pub(super) fn finish(&self, means: Means<'_>, buffers: &Buffers, out: &mut [f32]) {
        product(means.pool, out, &buffers.gate);
    }
}
