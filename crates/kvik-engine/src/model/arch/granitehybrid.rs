//! Granite 4 and Bamba: Mamba 2 in most layers, attention in the others, which rotates in Bamba alone; dense or with
//! experts.

use super::metadata::Metadata;
use super::{Architecture, LayerShape, Presence, experts, granite, recurrence};
use crate::model::{ConfigError, Extras, ModelConfig, RopeStyle};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "granitehybrid",
    hf_names: &[],
    hf_modules: &[],
    gguf_rope: RopeStyle::Interleaved,
    extras,
    layer: |config, index| {
        let shape = LayerShape {
            qkv_bias: Presence::Optional,
            output_bias: Presence::Optional,
            ..LayerShape::plain(config, index)
        };
        recurrence::layer(config, index, shape, recurrence::mamba)
    },
};

fn extras(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    let layers = recurrence::without_kv(metadata, config)?;
    let recurrence = Some(recurrence::with_matrices(metadata, layers)?);
    let experts = experts::read(metadata, config, true)?;
    Ok(Extras { experts, recurrence, ..granite::hybrid_extras(metadata, config)? })
}
