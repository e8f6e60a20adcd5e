//! Phi-3, Phi-3.5 and Phi-4: Llama with fused projections, and LongRoPE.

use super::metadata::Metadata;
use super::{Architecture, LayerShape, Presence, windows};
use crate::feed_forward::FeedForwardShape;
use crate::{ConfigError, Extras, ModelConfig, RopeStyle};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "phi3",
    hf_names: &["Phi3ForCausalLM"],
    hf_modules: &[("self_attn.qkv_proj", "attn_qkv"), ("mlp.gate_up_proj", "ffn_up")],
    gguf_rope: RopeStyle::HalfSplit,
    extras,
    layer: |config, index| LayerShape {
        qkv_bias: Presence::Optional,
        output_bias: Presence::Optional,
        feed_forward: FeedForwardShape::fused_swi_glu(config.d_ff(index)),
        ..LayerShape::plain(config, index)
    },
};

/// The windows in GGUF files come from a wrong conversion: llama.cpp ignores them too.
fn extras(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    let window = if metadata.is_hf() { windows::read(metadata, config, 0)? } else { None };
    Ok(Extras { window, ..Extras::default() })
}
