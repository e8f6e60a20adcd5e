//! A dense feed-forward layer on the device: its weights, its buffers and its steps.

use kvik_gpu::{Buffer, DeviceError, DeviceMatrix, Step};
use kvik_kernels::Activation;

use super::loader::{DeviceLinear, DeviceLoader, in_layer};
use crate::ModelError;
use crate::feed_forward::DenseShape;
use crate::feed_forward::dense::DenseNames;
use crate::loader::rows_of;

/// The weights of a dense layer.
pub(super) struct DeviceDense {
    activation: Activation,
    inner: InnerMatrices,
    down: DeviceLinear,
}

/// The matrices before the activation.
enum InnerMatrices {
    /// Gate and up, a row of each in turn, `[2 * d_ff, d_model]`: one product computes activations.
    Pairs(DeviceMatrix),
    /// With biases, of different types, or without a gate.
    Apart { gate: Option<DeviceLinear>, up: DeviceLinear },
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
        let down = |loader: &mut Self| loader.linear(in_layer(layer, names.down));
        let activation = shape.activation;
        if let Some(pairs) = self.pairs(shape, names, layer)? {
            let inner = InnerMatrices::Pairs(pairs);
            return Ok(DeviceDense { activation, inner, down: down(self)? });
        }
        let (gate, up) = if shape.fused {
            let [gate, up] =
                self.parts(in_layer(layer, names.up), [0..shape.d_ff, shape.d_ff..2 * shape.d_ff])?;
            (Some(gate), up)
        } else {
            let gate = activation.is_gated().then(|| self.linear(in_layer(layer, names.gate))).transpose()?;
            (gate, self.linear(in_layer(layer, names.up))?)
        };
        Ok(DeviceDense { activation, inner: InnerMatrices::Apart { gate, up }, down: down(self)? })
    }

    /// Gate and up of a layer as pairs of rows; `None` if they have no gate, have biases, or differ in their type.
    fn pairs(
        &mut self,
        shape: &DenseShape,
        names: &DenseNames,
        layer: usize,
    ) -> Result<Option<DeviceMatrix>, ModelError> {
        let [[gate, gate_bias], [up, up_bias]] = [names.gate, names.up].map(|names| in_layer(layer, names));
        let has_bias = [gate_bias, up_bias].iter().any(|bias| self.loader.left.contains(bias));
        if !shape.activation.is_gated() || has_bias {
            return Ok(None);
        }
        if shape.fused {
            let view = self.loader.take(&up)?;
            let halves = [0..shape.d_ff, shape.d_ff..2 * shape.d_ff].map(|rows| rows_of(&view, rows));
            let pairs = self.upload_pairs(&up, &halves)?;
            self.loader.tensors.release(&up);
            return Ok(Some(pairs));
        }
        let [of_gate, of_up] =
            [&gate, &up].map(|name| self.loader.tensors.get(name).map(|view| (view.ty, view.rows)));
        if of_gate != of_up {
            return Ok(None);
        }
        let views = [self.loader.take(&gate)?, self.loader.take(&up)?];
        let pairs = self.upload_pairs(&up, &views)?;
        [&gate, &up].into_iter().for_each(|name| self.loader.tensors.release(name));
        Ok(Some(pairs))
    }
}

impl DeviceDense {
    /// Bytes of matrices.
    pub(super) fn bytes(&self) -> usize {
        let inner = match &self.inner {
            InnerMatrices::Pairs(pairs) => pairs.bytes(),
            InnerMatrices::Apart { gate, up } => {
                gate.iter().chain([up]).map(|linear| linear.matrix.bytes()).sum()
            }
        };
        inner + self.down.matrix.bytes()
    }

    /// Computes the output of `n` rows `x`; both are `[n, d_model]`.
    pub(super) fn record(
        &self,
        step: &mut Step<'_>,
        (x, n): (&Buffer<f32>, usize),
        buffers: &mut InnerBuffers,
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        let inner = match &self.inner {
            InnerMatrices::Pairs(pairs) => {
                step.matmul_gated(self.activation, pairs, x, n, &mut buffers.gate)?;
                &buffers.gate
            }
            InnerMatrices::Apart { gate, up } => {
                up.multiply(step, (x, n), &mut buffers.up)?;
                if let Some(gate) = gate {
                    gate.multiply(step, (x, n), &mut buffers.gate)?;
                }
                buffers.activate(step, self.activation, n * up.matrix.rows())?
            }
        };
        self.down.multiply(step, (inner, n), out)
    }
}
