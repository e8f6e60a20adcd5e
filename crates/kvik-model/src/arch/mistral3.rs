//! Ministral 3 and later Mistral models: Llama with YaRN, and queries scaled by a factor that grows with their
//! position.

use super::metadata::{Key, Metadata};
use super::{Architecture, LayerShape, Presence, experts, windows};
use crate::{ConfigError, Extras, ModelConfig, RopeScaling, RopeStyle, Temperature};

/// Not at the top level of `config.json`, but among its RoPE parameters.
const TEMPERATURE: Key = Key::new("attention.temperature_scale", &["llama_4_scaling_beta"]);

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "mistral3",
    hf_names: &["Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"],
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
    let scale = metadata.number(TEMPERATURE)?.unwrap_or(0.0);
    // Only checkpoints say that there is a window, which then is in every layer.
    let window = if metadata.is_hf() { windows::read(metadata, config, 0)? } else { None };
    let extras = Extras { window, experts: experts::read(metadata, config, true)?, ..Extras::default() };
    if scale == 0.0 {
        return Ok(extras);
    }
    let RopeScaling::Yarn { original_context: interval, .. } = config.rope.scaling else {
        return Err(ConfigError::new(&metadata.name(TEMPERATURE), scale, "YaRN with its original context"));
    };
    Ok(Extras { temperature: Some(Temperature { scale, interval, offset: 0.0 }), ..extras })
}
