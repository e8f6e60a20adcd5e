//! Llama 1 to 3.x, TinyLlama, SmolLM2, Mistral 7B: no norms on heads; some fine-tunes carry biases. Mixtral: experts.

use super::metadata::{self, Metadata};
use super::{Architecture, LayerShape, Presence, experts, windows};
use crate::{ConfigError, Extras, ModelConfig, RopeStyle};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "llama",
    hf_names: &["LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"],
    hf_modules: &[],
    gguf_rope: RopeStyle::Interleaved,
    extras,
    layer: |config, index| LayerShape {
        qkv_bias: Presence::Optional,
        output_bias: Presence::Optional,
        ..LayerShape::plain(config, index)
    },
};

/// Mistral 7B v0.1 has a sliding window in every layer; its GGUF files do not say so. Llama's class ignores the
/// setting.
fn extras(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    let has_windows = metadata.is_hf() && !metadata::is_of_class(metadata, "LlamaForCausalLM")?;
    let window = if has_windows { windows::read(metadata, config, 0)? } else { None };
    Ok(Extras { window, experts: experts::read(metadata, config, true)?, ..Extras::default() })
}
