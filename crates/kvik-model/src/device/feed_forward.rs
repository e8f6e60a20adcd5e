//! The feed-forward layer on the device, of any kind, and its buffers.

use kvik_gpu::{Buffer, Device, DeviceError, Step};

use super::dense::{DeviceDense, InnerBuffers};
use super::experts::{DeviceExperts, ExpertsBuffers};
use super::loader::DeviceLoader;
use crate::feed_forward::FeedForwardShape;
use crate::feed_forward::dense::LAYER;
use crate::{ModelConfig, ModelError};

/// The weights of a layer, as in [`FeedForward`](crate::feed_forward::FeedForward).
pub(super) enum DeviceFeedForward {
    Dense(Box<DeviceDense>),
    Experts(Box<DeviceExperts>),
}

/// Buffers that all layers share.
pub(super) struct FeedForwardBuffers {
    inner: InnerBuffers,
    /// For models with experts.
    experts: Option<ExpertsBuffers>,
}

impl FeedForwardBuffers {
    /// Buffers for `n` rows.
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

/// Number of floats per row between the matrices of a layer, over all experts of the row.
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
}

impl DeviceFeedForward {
    /// Bytes of matrices.
    pub(super) fn bytes(&self) -> usize {
        match self {
            DeviceFeedForward::Dense(dense) => dense.bytes(),
            DeviceFeedForward::Experts(experts) => experts.bytes(),
        }
    }

    /// Computes the output of `n` rows `x`; both are `[n, d_model]`.
    pub(super) fn record(
        &self,
        step: &mut Step<'_>,
        (x, n): (&Buffer<f32>, usize),
        buffers: &mut FeedForwardBuffers,
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        let FeedForwardBuffers { inner, experts: of_experts } = buffers;
        match self {
            DeviceFeedForward::Dense(dense) => dense.record(step, (x, n), inner, out),
            DeviceFeedForward::Experts(experts) => {
                let buffers = of_experts.as_mut().expect("the model has experts");
                experts.record(step, (x, n), (inner, buffers), out)
            }
        }
    }
}
