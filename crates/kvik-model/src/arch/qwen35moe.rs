//! Qwen3.5 with experts, and a shared expert with a gate.

use super::metadata::Metadata;
use super::qwen2moe::with_gate;
use super::{Architecture, LayerShape, experts, qwen35};
use crate::recurrent::DeltaProjections;
use crate::{ConfigError, Extras, ModelConfig, RopeStyle};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen35moe",
    hf_names: &["Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"],
    hf_modules: qwen35::HF_MODULES,
    gguf_rope: RopeStyle::HalfSplit,
    extras: |metadata, config| with_experts(metadata, config, qwen35::extras(metadata, config)?),
    layer: |config, index| {
        let shape = qwen35::layer(config, index, qwen35::sharing(config), DeltaProjections::Apart);
        LayerShape { feed_forward: with_gate(shape.feed_forward), ..shape }
    },
};

/// The experts of Qwen3.5 and Qwen3-Next, whose weights are normalised.
pub(super) fn with_experts(
    metadata: &dyn Metadata,
    config: &ModelConfig,
    extras: Extras,
) -> Result<Extras, ConfigError> {
    let mut experts = experts::read_divided(metadata, config, true)?;
    if let Some(experts) = &mut experts
        && experts.shared_d_ff == 0
    {
        experts.shared_d_ff = config.d_ff;
    }
    Ok(Extras { experts, ..extras })
}
