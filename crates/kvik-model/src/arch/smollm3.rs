//! SmolLM3: Llama in which every fourth layer does not rotate (NoPE).

use super::metadata::{Key, Metadata};
use super::{Architecture, LayerShape, Presence};
use crate::{ConfigError, Extras, ModelConfig, RopeStyle};

/// 1 for the layers that rotate.
const ROTATED: Key = Key::hf(&["no_rope_layers"]);
const INTERVAL: Key = Key::hf(&["no_rope_layer_interval"]);
/// The default, since GGUF files do not store it.
const INTERVAL_DEFAULT: usize = 4;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "smollm3",
    hf_names: &["SmolLM3ForCausalLM"],
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
    let unrotated = match metadata.flags(ROTATED)? {
        Some(rotated) if rotated.len() != config.layers => {
            let expected = format!("one value for each of {} layers", config.layers);
            return Err(ConfigError::new(&metadata.name(ROTATED), rotated.len(), expected));
        }
        Some(rotated) => rotated.into_iter().map(|rotated| !rotated).collect(),
        None => {
            let interval = metadata.count(INTERVAL)?.unwrap_or(INTERVAL_DEFAULT).max(1);
            (1..=config.layers).map(|layer| layer.is_multiple_of(interval)).collect()
        }
    };
    Ok(Extras { unrotated, ..Extras::default() })
}
