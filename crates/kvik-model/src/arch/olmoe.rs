//! OLMoE: norms over all queries and all keys, and experts whose weights are not normalised.

use super::metadata::Metadata;
use super::{Architecture, LayerShape, Presence, QkNorm, experts};
use crate::{ConfigError, Extras, ModelConfig, RopeStyle};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "olmoe",
    hf_names: &["OlmoeForCausalLM"],
    hf_modules: &[],
    gguf_rope: RopeStyle::HalfSplit,
    extras,
    layer: |config, index| LayerShape {
        qk_norm: QkNorm::All(Presence::Required),
        ..LayerShape::plain(config, index)
    },
};

fn extras(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    Ok(Extras { experts: experts::read(metadata, config, false)?, ..Extras::default() })
}
