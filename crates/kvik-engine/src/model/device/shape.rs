//! What there are kernels for: dense models whose layers see all positions.

use kvik_gpu::DeviceError;
use kvik_kernels::KvKind;

use crate::model::arch::{LayerShape, MixingShape, Presence, QkNorm, Values};
use crate::model::feed_forward::FeedForwardShape;
use crate::model::residual::ResidualShape;
use crate::model::{ModelConfig, Multipliers};

/// Says so where a model has something that there is no kernel for.
pub(super) fn check(config: &ModelConfig) -> Result<(), DeviceError> {
    let of_layer = |index| lacking(&config.layer(index)).map(|what| format!("{what} (layer {index})"));
    let of_layers = (0..config.layers).find_map(of_layer);
    match lacking_around(config).map(str::to_owned).or(of_layers) {
        Some(what) => Err(DeviceError::Unsupported { what }),
        None => Ok(()),
    }
}

/// What around the layers has no kernel.
fn lacking_around(config: &ModelConfig) -> Option<&'static str> {
    let extras = &config.extras;
    let parts = [
        (extras.multipliers != Multipliers::default(), "multipliers of the residual stream and of logits"),
        (extras.temperature.is_some(), "queries that grow with their position"),
        (extras.score_cap.is_some(), "soft caps on attention scores"),
        (extras.logit_cap.is_some(), "soft caps on logits"),
        (config.residual() != ResidualShape::PLAIN, "what stands around the residual stream"),
    ];
    parts.into_iter().find(|(has, _)| *has).map(|(_, what)| what)
}

/// What of a layer has no kernel.
fn lacking(shape: &LayerShape) -> Option<&'static str> {
    let sparse = matches!(shape.feed_forward, FeedForwardShape::Dense(dense) if dense.sparsity.is_some());
    let parts = [
        (matches!(shape.mixing, MixingShape::Recurrent(_)), "layers that keep a state"),
        (shape.mixing == MixingShape::Absent, "layers without attention"),
        (shape.latent.is_some(), "latent attention"),
        (shape.kind != KvKind::Full, "layers that see a window"),
        (shape.source.is_some(), "layers that read the keys and values of others"),
        (shape.gated, "gates on attention"),
        (shape.sinks != Presence::Absent, "sinks of attention"),
        (shape.values != Values::Projected, "normed values"),
        (shape.qk_norm == QkNorm::Rotated, "norms behind the rotation"),
        (!matches!(shape.feed_forward, FeedForwardShape::Dense(_)), "mixtures of experts"),
        (sparse, "sparse gates"),
        (shape.residual != ResidualShape::PLAIN, "what stands around the residual stream"),
    ];
    parts.into_iter().find(|(has, _)| *has).map(|(_, what)| what)
}
