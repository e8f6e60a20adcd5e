//! Qwen3-Next: the gated delta rule in three of four layers, gated attention in the others, experts in all.

use kvik_kernels::KeySharing;

use super::qwen2moe::with_gate;
use super::{Architecture, LayerShape, qwen35, qwen35moe};
use crate::RopeStyle;
use crate::recurrent::DeltaProjections;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen3next",
    hf_names: &["Qwen3NextForCausalLM"],
    hf_modules: qwen35::HF_MODULES,
    gguf_rope: RopeStyle::HalfSplit,
    extras: |metadata, config| {
        qwen35moe::with_experts(metadata, config, qwen35::without_sections(metadata, config)?)
    },
    layer: |config, index| {
        let shape = qwen35::layer(config, index, KeySharing::Grouped, DeltaProjections::Mixed);
        LayerShape { feed_forward: with_gate(shape.feed_forward), ..shape }
    },
};
