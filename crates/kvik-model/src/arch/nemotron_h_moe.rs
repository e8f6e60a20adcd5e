//! Nemotron-H with experts chosen by a sigmoid with a bias, and a shared expert.

use kvik_kernels::Activation;

use super::metadata::Metadata;
use super::{Architecture, Presence, experts, nemotron_h};
use crate::feed_forward::{ExpertsShape, FeedForwardShape, Gating};
use crate::{ConfigError, Extras, ModelConfig, RopeStyle};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "nemotron_h_moe",
    hf_names: &[],
    hf_modules: nemotron_h::HF_MODULES,
    gguf_rope: RopeStyle::HalfSplit,
    extras,
    layer: |config, index| nemotron_h::layer(config, index, of_experts(config)),
};

fn extras(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    let experts = experts::read_divided(metadata, config, metadata.is_hf())?;
    Ok(Extras { experts, ..nemotron_h::extras(metadata, config)? })
}

fn of_experts(config: &ModelConfig) -> FeedForwardShape {
    config.extras.experts.map_or(FeedForwardShape::Absent, |experts| {
        FeedForwardShape::Experts(ExpertsShape {
            gating: Gating::Sigmoid,
            selection_bias: Presence::Required,
            activation: Activation::ReluSquared,
            ..experts.shape()
        })
    })
}
