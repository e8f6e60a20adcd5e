//! Qwen3.5: the gated delta rule in three of four layers; in the others attention, whose output has a gate, with norms
//! of heads and rotation of a part of each.

use kvik_kernels::KeySharing;

use super::metadata::{Key, Metadata};
use super::{Architecture, LayerShape, Norms, Presence, QkNorm, recurrence};
use crate::model::recurrent::{DeltaProjections, GatedDeltaShape};
use crate::model::{ConfigError, Extras, ModelConfig, RopeStyle};

/// How many pairs of dimensions rotate by the position in time, by the row and by the column of a picture. Those of text
/// are all the position of the token.
const SECTIONS: Key = Key::gguf("rope.dimension_sections");

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen35",
    hf_names: &[],
    hf_modules: &[],
    gguf_rope: RopeStyle::HalfSplit,
    extras,
    layer: |config, index| layer(config, index, KeySharing::Tiled, DeltaProjections::Apart),
};

pub(super) fn extras(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    check_sections(metadata, config.rope.dims / 2)?;
    without_sections(metadata, config)
}

/// What Qwen3-Next has, too.
pub(super) fn without_sections(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    let layers = recurrence::listed(metadata, config)?;
    let recurrence = recurrence::with_square_matrices(metadata, layers)?;
    Ok(Extras { recurrence: Some(recurrence), ..Extras::default() })
}

/// The sections take turns, pair by pair. A pair beyond its section would not rotate in text.
fn check_sections(metadata: &dyn Metadata, pairs: usize) -> Result<(), ConfigError> {
    let Some(sections) = metadata.counts(SECTIONS)? else { return Ok(()) };
    let of = |section: usize| sections.get(section).copied().unwrap_or(0);
    if (0..pairs).all(|pair| pair / 3 < of(pair % 3)) {
        return Ok(());
    }
    let expected = format!("sections of all {pairs} pairs");
    Err(ConfigError::new(&metadata.name(SECTIONS), format!("{sections:?}"), expected))
}

pub(super) fn layer(
    config: &ModelConfig,
    index: usize,
    sharing: KeySharing,
    projections: DeltaProjections,
) -> LayerShape {
    let shape = LayerShape {
        qk_norm: QkNorm::Head(Presence::Required),
        gated: true,
        norms: Norms { before: Some(["attn_norm.weight", "post_attention_norm.weight"]), after: None },
        ..LayerShape::plain(config, index)
    };
    let like = GatedDeltaShape { width: 0, heads: 0, key_heads: 0, dim: 0, sharing, projections };
    recurrence::layer(config, index, shape, |recurrence| recurrence::gated_delta(recurrence, like))
}
