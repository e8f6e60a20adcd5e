//! Granite 4 and Bamba: Mamba 2 in most layers, attention in the others, which rotates in Bamba, and in Granite where
//! files say so; dense or with experts.

use super::metadata::Metadata;
use super::{Architecture, LayerShape, Presence, experts, granite, recurrence};
use crate::{ConfigError, Extras, ModelConfig, RopeStyle};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "granitehybrid",
    hf_names: &["GraniteMoeHybridForCausalLM", "BambaForCausalLM"],
    hf_modules: &[
        ("pre_ff_layernorm", "ffn_norm"),
        ("feed_forward.gate_proj", "ffn_gate"),
        ("feed_forward.up_proj", "ffn_up"),
        ("feed_forward.down_proj", "ffn_down"),
        ("mamba.in_proj", "ssm_in"),
        ("mamba.conv1d", "ssm_conv1d"),
        ("mamba.A_log", "ssm_a_log"),
        ("mamba.D", "ssm_d"),
        ("mamba.dt_bias", "ssm_dt.bias"),
        ("mamba.norm", "ssm_norm"),
        ("mamba.out_proj", "ssm_out"),
    ],
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
    // Models of this name may have attention in every layer.
    let recurrence = match metadata.is_hf() && !layers.contains(&true) {
        true => None,
        false => Some(recurrence::with_matrices(metadata, config, layers)?),
    };
    let experts = experts::read(metadata, config, true)?;
    Ok(Extras { experts, recurrence, ..granite::hybrid_extras(metadata, config)? })
}
