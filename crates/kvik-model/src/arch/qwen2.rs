//! Qwen2 and Qwen2.5: biases on q, k and v.

use super::{Architecture, LayerShape, Presence};
use crate::{Extras, RopeStyle};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen2",
    hf_names: &["Qwen2ForCausalLM"],
    hf_modules: &[],
    gguf_rope: RopeStyle::HalfSplit,
    extras: |_, _| Ok(Extras::default()),
    layer: |config, index| LayerShape { qkv_bias: Presence::Required, ..LayerShape::plain(config, index) },
};
