//! Qwen2 and Qwen2.5: biases on q, k and v.

use super::{Architecture, LayerShape, Presence};
use crate::model::RopeStyle;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen2",
    hf_name: "Qwen2ForCausalLM",
    gguf_rope: RopeStyle::HalfSplit,
    layer: |config, _| LayerShape { qkv_bias: Presence::Required, ..LayerShape::plain(config) },
};
