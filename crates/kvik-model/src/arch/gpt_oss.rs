//! gpt-oss: experts with biases, a sliding window in every other layer, and attention sinks.

use kvik_kernels::Activation;

use super::metadata::Metadata;
use super::{Architecture, LayerShape, Norms, Presence, experts, windows};
use crate::feed_forward::{ExpertsShape, FeedForwardShape, Gating};
use crate::{ConfigError, Extras, ModelConfig, RopeStyle};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gpt-oss",
    hf_names: &["GptOssForCausalLM"],
    hf_modules: &[("post_attention_layernorm", "post_attention_norm")],
    gguf_rope: RopeStyle::HalfSplit,
    extras,
    layer: |config, index| {
        let plain = LayerShape::plain(config, index);
        LayerShape {
            qkv_bias: Presence::Required,
            output_bias: Presence::Required,
            sinks: Presence::Required,
            norms: Norms { before: Some(["attn_norm.weight", "post_attention_norm.weight"]), after: None },
            feed_forward: with_biases(plain.feed_forward),
            ..plain
        }
    },
};

fn extras(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    Ok(Extras {
        window: windows::read(metadata, config, 2)?,
        experts: experts::read(metadata, config, false)?,
        ..Extras::default()
    })
}

fn with_biases(shape: FeedForwardShape) -> FeedForwardShape {
    match shape {
        FeedForwardShape::Experts(experts) => FeedForwardShape::Experts(ExpertsShape {
            activation: Activation::SwiGluOai,
            biases: Presence::Required,
            gating: Gating::SoftmaxOfChosen,
            ..experts
        }),
        dense => dense,
    }
}
