//! Qwen3.5: the gated delta rule in three of four layers; in the others gated attention with norms on heads and
//! rotation of a part of each.

use kvik_kernels::KeySharing;
use kvik_text::files::hf::Modules;

use super::metadata::{Key, Metadata};
use super::{Architecture, LayerShape, Norms, Presence, QkNorm, recurrence};
use crate::recurrent::{DeltaProjections, GatedDeltaShape};
use crate::{ConfigError, Extras, ModelConfig, RopeStyle};

/// The numbers of rotation pairs for the position in time, and for the row and the column of an image. For text all
/// three are the position of the token.
const SECTIONS: Key = Key::new("rope.dimension_sections", &["mrope_section"]);
/// Hugging Face stores norm weights minus 1, except for those after a state; GGUF stores the weights.
const NORM_OFFSET: f32 = 1.0;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen35",
    hf_names: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
    hf_modules: HF_MODULES,
    gguf_rope: RopeStyle::HalfSplit,
    extras,
    layer: |config, index| layer(config, index, sharing(config), DeltaProjections::Apart),
};

/// Includes the modules of Qwen3-Next, whose projections are mixed.
pub(super) const HF_MODULES: Modules = &[
    ("post_attention_layernorm", "post_attention_norm"),
    ("linear_attn.in_proj_qkv", "attn_qkv"),
    ("linear_attn.in_proj_z", "attn_gate"),
    ("linear_attn.in_proj_b", "ssm_beta"),
    ("linear_attn.in_proj_a", "ssm_alpha"),
    ("linear_attn.in_proj_qkvz", "ssm_in"),
    ("linear_attn.in_proj_ba", "ssm_ba"),
    ("linear_attn.conv1d", "ssm_conv1d"),
    ("linear_attn.A_log", "ssm_a_log"),
    ("linear_attn.dt_bias", "ssm_dt.bias"),
    ("linear_attn.norm", "ssm_norm"),
    ("linear_attn.out_proj", "ssm_out"),
];

pub(super) fn extras(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    check_sections(metadata, config.rope.dims / 2)?;
    without_sections(metadata, config)
}

/// The extras that Qwen3-Next has too.
pub(super) fn without_sections(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    let layers = recurrence::listed(metadata, config)?;
    let recurrence = recurrence::with_square_matrices(metadata, config, layers)?;
    let norm_offset = if metadata.is_hf() { NORM_OFFSET } else { 0.0 };
    Ok(Extras { recurrence: Some(recurrence), norm_offset, ..Extras::default() })
}

/// The sections alternate, pair by pair. A pair beyond its section would not rotate in text.
fn check_sections(metadata: &dyn Metadata, pairs: usize) -> Result<(), ConfigError> {
    let Some(sections) = metadata.counts(SECTIONS)? else { return Ok(()) };
    let of = |section: usize| sections.get(section).copied().unwrap_or(0);
    if (0..pairs).all(|pair| pair / 3 < of(pair % 3)) {
        return Ok(());
    }
    let expected = format!("sections of all {pairs} pairs");
    Err(ConfigError::new(&metadata.name(SECTIONS), format!("{sections:?}"), expected))
}

/// The heads that read a key head: GGUF's order of them differs from that of checkpoints.
pub(super) fn sharing(config: &ModelConfig) -> KeySharing {
    let matrices = config.extras.recurrence.as_ref().and_then(|recurrence| recurrence.matrices);
    match matrices.is_some_and(|matrices| matrices.grouped) {
        true => KeySharing::Grouped,
        false => KeySharing::Tiled,
    }
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
