//! A dense feed-forward layer on the device: its weights, its buffers and its steps.

use kvik_gpu::{Buffer, DeviceError, DeviceMatrix, Step};
use kvik_kernels::Activation;

use super::loader::{DeviceLinear, DeviceLoader, in_layer};
use crate::ModelError;
use crate::feed_forward::DenseShape;
use crate::feed_forward::dense::DenseNames;

/// The weights of a dense layer.
pub(super) struct DeviceDense {
    activation: Activation,
    /// For gated activations.
    gate: Option<DeviceLinear>,
    up: DeviceLinear,
    down: DeviceLinear,
}

/// Rows between the matrices of a layer, `[n, width]` each.
pub(super) struct InnerBuffers {
    pub(super) gate: Buffer<f32>,
    pub(super) up: Buffer<f32>,
}

impl InnerBuffers {
    /// Applies an activation to the first `len` numbers of the matrix products; returns the buffer with the result.
    pub(super) fn activate(
        &mut self,
        step: &mut Step<'_>,
        activation: Activation,
        len: usize,
    ) -> Result<&Buffer<f32>, DeviceError> {
        let InnerBuffers { gate, up } = self;
        if activation.is_gated() {
            step.activate(activation, gate, Some(up), len)?;
            return Ok(gate);
        }
        step.activate(activation, up, None, len)?;
        Ok(up)
    }
}

impl DeviceLoader<'_, '_> {
    /// A dense layer, whose gate and up may be stored as one tensor.
    pub(super) fn dense(
        &mut self,
        shape: &DenseShape,
        names: &DenseNames,
        layer: usize,
    ) -> Result<DeviceDense, ModelError> {
        let (gate, up) = if shape.fused {
            let [gate, up] =
                self.parts(in_layer(layer, names.up), [0..shape.d_ff, shape.d_ff..2 * shape.d_ff])?;
            (Some(gate), up)
        } else {
            let is_gated = shape.activation.is_gated();
            let gate = is_gated.then(|| self.linear(in_layer(layer, names.gate))).transpose()?;
            (gate, self.linear(in_layer(layer, names.up))?)
        };
        let down = self.linear(in_layer(layer, names.down))?;
        Ok(DeviceDense { activation: shape.activation, gate, up, down })
    }
}

impl DeviceDense {
    /// Bytes of matrices.
    pub(super) fn bytes(&self) -> usize {
        let linears = self.gate.iter().chain([&self.up, &self.down]);
        linears.map(|linear| &linear.matrix).map(DeviceMatrix::bytes).sum()
    }

    /// Computes the output of `n` rows `x`; both are `[n, d_model]`.
    pub(super) fn record(
        &self,
        step: &mut Step<'_>,
        (x, n): (&Buffer<f32>, usize),
        buffers: &mut InnerBuffers,
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        self.up.multiply(step, (x, n), &mut buffers.up)?;
        if let Some(gate) = &self.gate {
            gate.multiply(step, (x, n), &mut buffers.gate)?;
        }
        let inner = buffers.activate(step, self.activation, n * self.up.matrix.rows())?;
        self.down.multiply(step, (inner, n), out)
    }
}
