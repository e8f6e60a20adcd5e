//! The feed-forward half of a layer: its kinds, the tensors of each, and how each computes.
//!
//! A new kind is a variant of both enums and a file here. The output for a row depends on that row only, not on the
//! rest of the batch.

pub(crate) mod dense;
pub(crate) mod experts;
mod mixed;
#[cfg(test)]
mod tests;

use kvik_kernels::{Activation, Activations, Matrix, Pool};

use super::adapt::Adapt;
use super::layer_tensor::LayerTensor;
use super::loader::LayerLoader;
use super::{ConfigError, ModelError};
use dense::{Dense, LAYER};
use experts::Experts;
use mixed::Mixed;

pub(crate) use dense::DenseShape;
pub(crate) use experts::ExpertsShape;
pub(crate) use experts::{ExpertGroups, Gating, SharedShape, Weighted};
pub(crate) use mixed::MixedShape;

/// The kind of a feed-forward layer, and its widths.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum FeedForwardShape {
    /// A dense layer: all rows use one set of matrices.
    Dense(DenseShape),
    /// A mixture of experts: each row goes to a few of many.
    Experts(ExpertsShape),
    /// The layer has none (Nemotron-H).
    Absent,
    /// A dense layer and a mixture in parallel.
    Mixed(MixedShape),
}

impl FeedForwardShape {
    /// `down(silu(gate(h)) * up(h))` without biases.
    pub(crate) fn swi_glu(d_ff: usize) -> FeedForwardShape {
        FeedForwardShape::gated(d_ff, Activation::SwiGlu)
    }

    /// As [`swi_glu`](Self::swi_glu), with gate and up in one tensor.
    pub(crate) fn fused_swi_glu(d_ff: usize) -> FeedForwardShape {
        FeedForwardShape::Dense(DenseShape { fused: true, ..DenseShape::plain(d_ff, Activation::SwiGlu) })
    }

    /// `down(gelu(gate(h)) * up(h))` without biases.
    pub(crate) fn ge_glu(d_ff: usize) -> FeedForwardShape {
        FeedForwardShape::gated(d_ff, Activation::GeGlu)
    }

    fn gated(d_ff: usize, activation: Activation) -> FeedForwardShape {
        FeedForwardShape::Dense(DenseShape::plain(d_ff, activation))
    }

    /// Its tensors.
    pub(crate) fn tensors(self, d_model: usize) -> Vec<LayerTensor> {
        match self {
            FeedForwardShape::Dense(shape) => shape.tensors(&LAYER, d_model),
            FeedForwardShape::Experts(shape) => shape.tensors(d_model),
            FeedForwardShape::Absent => Vec::new(),
            FeedForwardShape::Mixed(shape) => shape.tensors(d_model),
        }
    }

    /// The matrices in the upper and the lower half of a tensor of the layer that is two matrices in one.
    pub(crate) fn halves(self, tensor: &str) -> Option<[&'static str; 2]> {
        match self {
            FeedForwardShape::Dense(dense) | FeedForwardShape::Mixed(MixedShape { dense, .. }) => {
                dense.halves(&LAYER, tensor)
            }
            FeedForwardShape::Experts(_) | FeedForwardShape::Absent => None,
        }
    }

    /// Returns an error if settings contradict each other.
    pub(crate) fn check(self) -> Result<(), ConfigError> {
        match self {
            FeedForwardShape::Experts(shape) | FeedForwardShape::Mixed(MixedShape { experts: shape, .. }) => {
                shape.check()
            }
            FeedForwardShape::Dense(_) | FeedForwardShape::Absent => Ok(()),
        }
    }

    /// Loads its tensors by their names in the layer; `None` if it is absent.
    pub(crate) fn load(self, layer: &mut LayerLoader<'_, '_>) -> Result<Option<FeedForward>, ModelError> {
        Ok(match self {
            FeedForwardShape::Dense(shape) => {
                Some(FeedForward::Dense(Box::new(Dense::load(shape, &LAYER, layer)?)))
            }
            FeedForwardShape::Experts(shape) => {
                Some(FeedForward::Experts(Box::new(Experts::load(shape, layer)?)))
            }
            FeedForwardShape::Mixed(shape) => Some(FeedForward::Mixed(Box::new(Mixed::load(shape, layer)?))),
            FeedForwardShape::Absent => None,
        })
    }
}

/// The weights of a feed-forward layer.
pub(crate) enum FeedForward {
    /// [`FeedForwardShape::Dense`]
    Dense(Box<Dense>),
    /// [`FeedForwardShape::Experts`]
    Experts(Box<Experts>),
    /// [`FeedForwardShape::Mixed`]
    Mixed(Box<Mixed>),
}

/// Buffers that the feed-forward layers of a pass share.
#[derive(Default)]
pub(crate) struct Buffers {
    dense: dense::Buffers,
    experts: experts::Buffers,
    mixed: mixed::Buffers,
}

impl FeedForward {
    /// All of its matrices.
    pub(crate) fn matrices(&self) -> Vec<&Matrix> {
        match self {
            FeedForward::Dense(dense) => dense.matrices(),
            FeedForward::Experts(experts) => experts.matrices(),
            FeedForward::Mixed(mixed) => mixed.matrices(),
        }
    }

    /// Replaces normed rows by the layer's output, `h`; `x` is the stream before the norm: `[n, d_model]` each.
    pub(crate) fn forward(
        &self,
        pool: &Pool,
        (x, h): (&[f32], &mut [f32]),
        inputs: &mut Activations,
        buffers: &mut Buffers,
        adapt: &mut dyn Adapt,
    ) {
        match self {
            FeedForward::Dense(dense) => {
                inputs.set(pool, h, dense.d_model(), &dense.takers());
                dense.project(pool, h, inputs, &mut buffers.dense, adapt);
                dense.finish(pool, h, &buffers.dense, adapt);
            }
            FeedForward::Experts(experts) => {
                inputs.set(pool, h, experts.d_model(), &experts.takers());
                experts.forward(pool, h, inputs, buffers, adapt);
            }
            FeedForward::Mixed(mixed) => mixed.forward(pool, (x, h), inputs, buffers, adapt),
        }
    }
}
