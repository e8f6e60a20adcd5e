//! LFM2 with experts chosen by a sigmoid with a bias; the first layers are dense.

use super::metadata::Metadata;
use super::{Architecture, LayerShape, Presence, experts, lfm2};
use crate::feed_forward::{ExpertsShape, FeedForwardShape};
use crate::{ConfigError, Extras, ModelConfig, RopeStyle};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "lfm2moe",
    hf_names: &["Lfm2MoeForCausalLM"],
    hf_modules: lfm2::HF_MODULES,
    gguf_rope: RopeStyle::HalfSplit,
    extras,
    layer: |config, index| {
        let shape = lfm2::layer(config, index);
        LayerShape { feed_forward: with_bias(shape.feed_forward), ..shape }
    },
};

fn extras(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    let mut experts = experts::read(metadata, config, true)?;
    if let Some(experts) = &mut experts {
        // GGUF files store it.
        experts.sigmoid |= metadata.is_hf();
    }
    Ok(Extras { experts, ..lfm2::extras(metadata, config)? })
}

fn with_bias(shape: FeedForwardShape) -> FeedForwardShape {
    match shape {
        FeedForwardShape::Experts(experts) => {
            FeedForwardShape::Experts(ExpertsShape { selection_bias: Presence::Required, ..experts })
        }
        other => other,
    }
}
