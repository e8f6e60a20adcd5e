//! The models that the kernels support: layers that attend to keys and values of their own, with dense feed-forward
//! layers or mixtures of experts.

use kvik_gpu::DeviceError;

use crate::ModelConfig;
use crate::arch::{LayerShape, MixingShape, Values};
use crate::feed_forward::FeedForwardShape;
use crate::layer_tensor::Presence;
use crate::residual::ResidualShape;

/// Returns an error if no kernel supports a part of the model.
pub(super) fn check(config: &ModelConfig) -> Result<(), DeviceError> {
    let of_layer = |index| lacking(&config.layer(index)).map(|what| format!("{what} (layer {index})"));
    let of_layers = (0..config.layers).find_map(of_layer);
    match lacking_around(config).map(str::to_owned).or(of_layers) {
        Some(what) => Err(DeviceError::Unsupported { what }),
        None => Ok(()),
    }
}

/// The first part around the layers without a kernel.
fn lacking_around(config: &ModelConfig) -> Option<&'static str> {
    (config.residual() != ResidualShape::PLAIN).then_some("what stands around the residual stream")
}

/// The first part of a layer without a kernel.
fn lacking(shape: &LayerShape) -> Option<&'static str> {
    let parts = [
        (matches!(shape.mixing, MixingShape::Recurrent(_)), "layers that keep a state"),
        (shape.mixing == MixingShape::Absent, "layers without attention"),
        (shape.latent.is_some(), "latent attention"),
        (shape.source.is_some(), "layers that read the keys and values of others"),
        (shape.gated, "gates on attention"),
        (shape.values != Values::Projected, "normed values"),
        (shape.residual != ResidualShape::PLAIN, "what stands around the residual stream"),
    ];
    let of_mixing = parts.into_iter().find(|(has, _)| *has).map(|(_, what)| what);
    of_mixing.or_else(|| lacking_in_half(&shape.feed_forward))
}

/// The first part of a feed-forward layer without a kernel.
fn lacking_in_half(shape: &FeedForwardShape) -> Option<&'static str> {
    match shape {
        FeedForwardShape::Dense(dense) => dense.sparsity.map(|_| "sparse gates"),
        FeedForwardShape::Experts(experts) if experts.groups.is_some() => Some("groups of experts"),
        FeedForwardShape::Experts(experts) if experts.output_scale != Presence::Absent => {
            Some("experts whose outputs have factors")
        }
        FeedForwardShape::Experts(_) => None,
        FeedForwardShape::Mixed(_) => Some("dense layers and experts side by side"),
        FeedForwardShape::Absent => Some("layers without a feed-forward half"),
    }
}
