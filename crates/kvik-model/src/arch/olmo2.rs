//! OLMo 2: norms after attention and feed-forward layers instead of before them, and norms over all queries and all
//! keys. OLMo 3: sliding windows in three of four layers, which rotate without stretching.

use super::metadata::{self, Metadata};
use super::{Architecture, LayerShape, Norms, Presence, QkNorm, windows};
use crate::{ConfigError, Extras, ModelConfig, RopeScaling, RopeStyle};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "olmo2",
    hf_names: &["Olmo2ForCausalLM", "Olmo3ForCausalLM"],
    hf_modules: &[
        ("post_attention_layernorm", "post_attention_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
    ],
    gguf_rope: RopeStyle::HalfSplit,
    extras,
    layer: |config, index| LayerShape {
        norms: Norms::AFTER,
        qk_norm: QkNorm::All(Presence::Required),
        ..LayerShape::plain(config, index)
    },
};

fn extras(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    // The class of OLMo 2 ignores the setting; GGUF has one architecture for both.
    if metadata::is_of_class(metadata, "Olmo2ForCausalLM")? {
        return Ok(Extras::default());
    }
    let mut window = windows::read(metadata, config, 4)?;
    if let Some(window) = &mut window {
        window.rope.scaling = RopeScaling::None;
    }
    Ok(Extras { window, ..Extras::default() })
}
