//! Qwen3-MoE: Qwen3 with a mixture of experts in every layer.

use super::metadata::Metadata;
use super::{Architecture, LayerShape, Presence, QkNorm, experts};
use crate::{ConfigError, Extras, ModelConfig, RopeStyle};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen3moe",
    hf_names: &["Qwen3MoeForCausalLM"],
    hf_modules: &[],
    gguf_rope: RopeStyle::HalfSplit,
    extras,
    layer: |config, index| LayerShape {
        qkv_bias: Presence::Optional,
        output_bias: Presence::Optional,
        qk_norm: QkNorm::Head(Presence::Required),
        ..LayerShape::plain(config, index)
    },
};

fn extras(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    Ok(Extras { experts: experts::read_divided(metadata, config, !metadata.is_hf())?, ..Extras::default() })
}
