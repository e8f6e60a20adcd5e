//! DeepSeek-MoE: Llama with many small experts whose weights are not normalised, and a shared expert.

use super::metadata::Metadata;
use super::{Architecture, LayerShape, experts};
use crate::{ConfigError, Extras, ModelConfig, RopeStyle};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "deepseek",
    hf_names: &["DeepseekForCausalLM"],
    hf_modules: &[],
    gguf_rope: RopeStyle::Interleaved,
    extras,
    layer: LayerShape::plain,
};

fn extras(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    Ok(Extras { experts: experts::read(metadata, config, false)?, ..Extras::default() })
}
