//! Llama 1 to 3.x, TinyLlama, SmolLM2: no norms on heads; some fine-tunes carry biases.

use super::{Architecture, LayerShape, Presence};
use crate::model::RopeStyle;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "llama",
    hf_name: "LlamaForCausalLM",
    gguf_rope: RopeStyle::Interleaved,
    layer: |config, _| LayerShape {
        qkv_bias: Presence::Optional,
        output_bias: Presence::Optional,
        ..LayerShape::plain(config)
    },
};
