//! Granite 3 and the dense models of Granite 4: Llama with multipliers, with or without rotation.

use super::metadata::{self, Key, Metadata};
use super::{Architecture, LayerShape, Presence};
use crate::{ConfigError, Extras, ModelConfig, Multipliers, RopeStyle};

const EMBEDDING: Key = Key::new("embedding_scale", &["embedding_multiplier"]);
const RESIDUAL: Key = Key::new("residual_scale", &["residual_multiplier"]);
const ATTENTION: Key = Key::new("attention.scale", &["attention_multiplier"]);
/// Logits are divided by it.
const LOGITS: Key = Key::new("logit_scale", &["logits_scaling"]);
/// GGUF files use it to say that a model does not rotate.
const ROTATED: Key = Key::gguf("rope.scaling.finetuned");
const POSITIONS: Key = Key::hf(&["position_embedding_type"]);

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "granite",
    hf_names: &["GraniteForCausalLM"],
    hf_modules: &[],
    gguf_rope: RopeStyle::Interleaved,
    extras,
    layer: |config, index| LayerShape {
        qkv_bias: Presence::Optional,
        output_bias: Presence::Optional,
        ..LayerShape::plain(config, index)
    },
};

/// The multipliers that all Granite models have.
pub(super) fn extras(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    let logits = metadata.needed_number(LOGITS)?;
    multiplied_by(logits, is_rotated(metadata)?, metadata, config)
}

/// The multipliers of hybrids, of which Bamba has none for logits.
pub(super) fn hybrid_extras(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    let logits = metadata.number(LOGITS)?.filter(|&factor| factor != 0.0);
    let rotated = if metadata.is_hf() { hybrid_is_rotated(metadata)? } else { is_rotated(metadata)? };
    multiplied_by(logits.unwrap_or(1.0), rotated, metadata, config)
}

/// Whether the attention of a hybrid rotates in checkpoints: Granite's only if they say so, Bamba's always.
fn hybrid_is_rotated(metadata: &dyn Metadata) -> Result<bool, ConfigError> {
    let says_so = metadata.texts(POSITIONS)?.is_some_and(|names| names == ["rope"]);
    Ok(says_so || metadata::is_of_class(metadata, "BambaForCausalLM")?)
}

/// A factor of 0 stands for none, as in llama.cpp; except the divisor of logits.
fn multiplied_by(
    logits: f32,
    rotated: bool,
    metadata: &dyn Metadata,
    config: &ModelConfig,
) -> Result<Extras, ConfigError> {
    let factor = |key| -> Result<Option<f32>, ConfigError> {
        Ok(metadata.number(key)?.filter(|&factor| factor != 0.0))
    };
    if !(logits.is_finite() && logits > 0.0) {
        return Err(ConfigError::new(&metadata.name(LOGITS), logits, "a positive number"));
    }
    Ok(Extras {
        multipliers: Multipliers {
            embedding: factor(EMBEDDING)?.unwrap_or(1.0),
            residual: factor(RESIDUAL)?.unwrap_or(1.0),
            logits: 1.0 / logits,
        },
        attention_scale: factor(ATTENTION)?,
        unrotated: vec![!rotated; config.layers],
        ..Extras::default()
    })
}

fn is_rotated(metadata: &dyn Metadata) -> Result<bool, ConfigError> {
    let without = metadata.texts(POSITIONS)?.is_some_and(|names| names == ["nope"]);
    Ok(metadata.flag(ROTATED)?.unwrap_or(true) && !without)
}
