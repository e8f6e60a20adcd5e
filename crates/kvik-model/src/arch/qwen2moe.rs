//! Qwen2-MoE and Qwen1.5-MoE: Qwen2 with experts whose weights are not normalised, and a shared expert with a gate.

use super::metadata::Metadata;
use super::{Architecture, LayerShape, Presence, experts};
use crate::feed_forward::{ExpertsShape, FeedForwardShape, SharedShape};
use crate::{ConfigError, Extras, ModelConfig, RopeStyle};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen2moe",
    hf_names: &["Qwen2MoeForCausalLM"],
    hf_modules: &[],
    gguf_rope: RopeStyle::HalfSplit,
    extras,
    layer: |config, index| {
        let plain = LayerShape::plain(config, index);
        LayerShape {
            qkv_bias: Presence::Optional,
            output_bias: Presence::Optional,
            feed_forward: with_gate(plain.feed_forward),
            ..plain
        }
    },
};

fn extras(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    let mut experts = experts::read_divided(metadata, config, false)?;
    if let Some(experts) = &mut experts
        && experts.shared_d_ff == 0
    {
        experts.shared_d_ff = config.d_ff;
    }
    Ok(Extras { experts, ..Extras::default() })
}

/// A mixture whose shared expert has a gate.
pub(super) fn with_gate(shape: FeedForwardShape) -> FeedForwardShape {
    match shape {
        FeedForwardShape::Experts(experts) => FeedForwardShape::Experts(ExpertsShape {
            shared: experts.shared.map(|shared| SharedShape { gate: Presence::Required, ..shared }),
            ..experts
        }),
        dense => dense,
    }
}
