//! GLM-4: norms before and after both halves of a layer, fused gate and up, and rotation of a part of each head.

use super::{Architecture, LayerShape, Norms, Presence};
use crate::feed_forward::FeedForwardShape;
use crate::{Extras, RopeStyle};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "glm4",
    hf_names: &["Glm4ForCausalLM"],
    hf_modules: &[
        ("post_self_attn_layernorm", "post_attention_norm"),
        ("post_mlp_layernorm", "post_ffw_norm"),
        ("mlp.gate_up_proj", "ffn_up"),
    ],
    gguf_rope: RopeStyle::Interleaved,
    extras: |_, _| Ok(Extras::default()),
    layer: |config, index| LayerShape {
        qkv_bias: Presence::Optional,
        norms: Norms::AROUND,
        feed_forward: FeedForwardShape::fused_swi_glu(config.d_ff(index)),
        ..LayerShape::plain(config, index)
    },
};
