//! The feed-forward half of a layer on the device: its weights, the buffers of a step, and its steps.

use kvik_gpu::{Buffer, Device, DeviceError, DeviceMatrix, Step};
use kvik_kernels::Activation;

use super::experts::{DeviceExperts, ExpertsBuffers};
use super::forward::multiply;
use super::weights::{DeviceLinear, DeviceLoader};
use crate::model::feed_forward::dense::{DenseNames, LAYER};
use crate::model::feed_forward::{DenseShape, FeedForwardShape};
use crate::model::{ModelConfig, ModelError};

/// The weights of one, as [`FeedForward`](crate::model::feed_forward::FeedForward) has them.
pub(super) enum DeviceFeedForward {
    Dense(Box<DeviceDense>),
    Experts(Box<DeviceExperts>),
}

/// The weights of a dense layer.
pub(super) struct DeviceDense {
    activation: Activation,
    /// Of a gated activation.
    gate: Option<DeviceLinear>,
    up: DeviceLinear,
    down: DeviceLinear,
}

/// What the halves of all layers compute with.
pub(super) struct FeedForwardBuffers {
    pub(super) inner: InnerBuffers,
    /// Of models with experts.
    pub(super) experts: Option<ExpertsBuffers>,
}

/// Rows between the matrices of a half, `[n, width]` each.
pub(super) struct InnerBuffers {
    pub(super) gate: Buffer<f32>,
    pub(super) up: Buffer<f32>,
}

impl FeedForwardBuffers {
    /// For `n` rows.
    pub(super) fn new(
        device: &Device,
        config: &ModelConfig,
        n: usize,
    ) -> Result<FeedForwardBuffers, DeviceError> {
        let shapes = || (0..config.layers).map(|index| config.layer(index).feed_forward);
        let width = shapes().map(inner_width).max().unwrap_or(0);
        let experts = shapes().find_map(|shape| match shape {
            FeedForwardShape::Experts(shape) => {
                Some(ExpertsBuffers::new(device, &shape, [n, config.d_model]))
            }
            _ => None,
        });
        Ok(FeedForwardBuffers {
            inner: InnerBuffers {
                gate: device.zeros("the gates of a layer", n * width)?,
                up: device.zeros("the inner rows of a layer", n * width)?,
            },
            experts: experts.transpose()?,
        })
    }
}

/// Numbers between the matrices of a half, of all that a row goes to at once.
fn inner_width(shape: FeedForwardShape) -> usize {
    match shape {
        FeedForwardShape::Dense(dense) => dense.d_ff,
        FeedForwardShape::Experts(experts) => {
            let shared = experts.shared.map_or(0, |shared| shared.d_ff);
            shared.max(experts.used * experts.d_ff)
        }
        FeedForwardShape::Mixed(_) | FeedForwardShape::Absent => unreachable!("{NOT_CHECKED}"),
    }
}

const NOT_CHECKED: &str = "the shapes of all layers are checked";

impl DeviceLoader<'_, '_> {
    pub(super) fn feed_forward(
        &mut self,
        shape: FeedForwardShape,
        layer: usize,
    ) -> Result<DeviceFeedForward, ModelError> {
        Ok(match shape {
            FeedForwardShape::Dense(dense) => {
                DeviceFeedForward::Dense(Box::new(self.dense(&dense, &LAYER, layer)?))
            }
            FeedForwardShape::Experts(shape) => {
                DeviceFeedForward::Experts(Box::new(self.experts(shape, layer)?))
            }
            FeedForwardShape::Mixed(_) | FeedForwardShape::Absent => unreachable!("{NOT_CHECKED}"),
        })
    }

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

/// The names of tensors of a layer as those of the model.
pub(super) fn in_layer<const COUNT: usize>(layer: usize, names: [&str; COUNT]) -> [String; COUNT] {
    names.map(|name| format!("blk.{layer}.{name}"))
}

impl DeviceFeedForward {
    /// Bytes of matrices.
    pub(super) fn bytes(&self) -> usize {
        match self {
            DeviceFeedForward::Dense(dense) => dense.bytes(),
            DeviceFeedForward::Experts(experts) => experts.bytes(),
        }
    }

    /// The output for `n` rows that `x` has for it; both are `[n, d_model]`.
    pub(super) fn record(
        &self,
        step: &mut Step<'_>,
        (x, n): (&Buffer<f32>, usize),
        buffers: &mut FeedForwardBuffers,
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        match self {
            DeviceFeedForward::Dense(dense) => dense.record(step, (x, n), &mut buffers.inner, out),
            DeviceFeedForward::Experts(experts) => experts.record(step, (x, n), buffers, out),
        }
    }
}

impl DeviceDense {
    /// Bytes of matrices.
    pub(super) fn bytes(&self) -> usize {
        let linears = self.gate.iter().chain([&self.up, &self.down]);
        linears.map(|linear| &linear.matrix).map(DeviceMatrix::bytes).sum()
    }

    /// [`DeviceFeedForward::record`]
    pub(super) fn record(
        &self,
        step: &mut Step<'_>,
        (x, n): (&Buffer<f32>, usize),
        InnerBuffers { gate, up }: &mut InnerBuffers,
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        multiply(step, &self.up, x, n, up)?;
        let len = n * self.up.matrix.rows();
        let Some(linear) = &self.gate else {
            step.activate(self.activation, up, None, len)?;
            return multiply(step, &self.down, up, n, out);
        };
        multiply(step, linear, x, n, gate)?;
        step.activate(self.activation, gate, Some(up), len)?;
        multiply(step, &self.down, gate, n, out)
    }
}
