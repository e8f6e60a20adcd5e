//! Qwen3: a norm on every query and key head; with `attention_bias`, biases on all four projections.

use super::{Architecture, LayerShape, Presence};
use crate::model::RopeStyle;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen3",
    hf_name: "Qwen3ForCausalLM",
    gguf_rope: RopeStyle::HalfSplit,
    layer: |config, _| LayerShape {
        qkv_bias: Presence::Optional,
        output_bias: Presence::Optional,
        qk_norm: Presence::Required,
        ..LayerShape::plain(config)
    },
};
