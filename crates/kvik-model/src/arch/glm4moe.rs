//! GLM-4.5: experts chosen by a sigmoid with a bias, and a shared expert; the first layers are dense.

use super::metadata::Metadata;
use super::{Architecture, LayerShape, Norms, Presence, QkNorm, experts};
use crate::feed_forward::{ExpertsShape, FeedForwardShape, Gating};
use crate::{ConfigError, Extras, ModelConfig, RopeStyle};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "glm4moe",
    hf_names: &["Glm4MoeForCausalLM"],
    hf_modules: &[("post_attention_layernorm", "post_attention_norm")],
    gguf_rope: RopeStyle::HalfSplit,
    extras,
    layer: |config, index| {
        let plain = LayerShape::plain(config, index);
        LayerShape {
            qkv_bias: Presence::Optional,
            qk_norm: QkNorm::Head(Presence::Optional),
            norms: Norms { before: Some(["attn_norm.weight", "post_attention_norm.weight"]), after: None },
            feed_forward: with_bias(plain.feed_forward),
            ..plain
        }
    },
};

fn extras(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    let mut experts = experts::read_divided(metadata, config, metadata.is_hf())?;
    if let Some(experts) = &mut experts {
        experts.sigmoid |= metadata.count(experts::GATING)?.unwrap_or(0) == 0;
    }
    Ok(Extras { experts, ..Extras::default() })
}

fn with_bias(shape: FeedForwardShape) -> FeedForwardShape {
    match shape {
        FeedForwardShape::Experts(experts) => FeedForwardShape::Experts(ExpertsShape {
            selection_bias: match experts.gating {
                Gating::Sigmoid => Presence::Optional,
                _ => Presence::Absent,
            },
            ..experts
        }),
        dense => dense,
    }
}
