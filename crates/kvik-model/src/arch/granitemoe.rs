//! Granite MoE: Granite with a mixture of experts in every layer, and a shared expert in some models.

use super::metadata::Metadata;
use super::{Architecture, LayerShape, Presence, experts, granite};
use crate::{ConfigError, Extras, ModelConfig, RopeStyle};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "granitemoe",
    hf_names: &["GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"],
    hf_modules: &[],
    gguf_rope: RopeStyle::Interleaved,
    extras,
    layer: |config, index| LayerShape {
        qkv_bias: Presence::Optional,
        output_bias: Presence::Optional,
        ..LayerShape::plain(config, index)
    },
};

fn extras(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    let experts = experts::read(metadata, config, true)?;
    // These models always rotate.
    Ok(Extras { experts, unrotated: Vec::new(), ..granite::extras(metadata, config)? })
}
