//! Qwen3: a norm on every query and key head; with `attention_bias`, biases on all four projections.

use super::{Architecture, LayerShape, Presence, QkNorm};
use crate::{Extras, RopeStyle};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen3",
    hf_names: &["Qwen3ForCausalLM"],
    hf_modules: &[],
    gguf_rope: RopeStyle::HalfSplit,
    extras: |_, _| Ok(Extras::default()),
    layer: |config, index| LayerShape {
        qkv_bias: Presence::Optional,
        output_bias: Presence::Optional,
        qk_norm: QkNorm::Head(Presence::Required),
        ..LayerShape::plain(config, index)
    },
};
