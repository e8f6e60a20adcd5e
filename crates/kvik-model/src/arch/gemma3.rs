//! Gemma 3 (text): norms on queries and keys, and sliding windows with a RoPE base of their own in five of six layers.

use super::metadata::Metadata;
use super::{Architecture, LayerShape, Norms, Presence, QkNorm, gemma2, windows};
use crate::feed_forward::FeedForwardShape;
use crate::{ConfigError, Extras, ModelConfig, RopeScaling, RopeStyle};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gemma3",
    hf_names: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    hf_modules: gemma2::HF_MODULES,
    gguf_rope: RopeStyle::HalfSplit,
    extras,
    layer: |config, index| LayerShape {
        norms: Norms::AROUND,
        qk_norm: QkNorm::Head(Presence::Required),
        feed_forward: FeedForwardShape::ge_glu(config.d_ff(index)),
        ..LayerShape::plain(config, index)
    },
};

fn extras(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    let mut window = windows::read(metadata, config, 6)?;
    if let Some(window) = &mut window {
        window.rope.theta = metadata.number(windows::THETA)?.unwrap_or(windows::THETA_DEFAULT);
        window.rope.scaling = RopeScaling::None;
    }
    // 0 stands for none, as in llama.cpp.
    let logit_cap = metadata.number(gemma2::LOGIT_CAP)?.filter(|&cap| cap != 0.0);
    Ok(Extras { window, logit_cap, ..gemma2::common(metadata, config, 62)? })
}
