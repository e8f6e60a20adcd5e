//! Gemma 2: soft caps on scores and logits, norms before and after both halves of a layer, a sliding window in every
//! other layer.

use super::metadata::{Key, Metadata};
use super::{Architecture, LayerShape, Norms, windows};
use crate::feed_forward::FeedForwardShape;
use crate::{ConfigError, Extras, ModelConfig, Multipliers, RopeStyle};

const SCORE_CAP: Key = Key::new("attn_logit_softcapping", &["attn_logit_softcapping"]);
pub(super) const LOGIT_CAP: Key = Key::new("final_logit_softcapping", &["final_logit_softcapping"]);
/// The default if a file does not say it.
pub(super) const LOGIT_CAP_DEFAULT: f32 = 30.0;
/// Scores are divided by its square root.
const QUERY_SCALAR: Key = Key::hf(&["query_pre_attn_scalar"]);
/// Hugging Face stores norm weights minus 1, GGUF the weights.
const NORM_OFFSET: f32 = 1.0;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gemma2",
    hf_names: &["Gemma2ForCausalLM"],
    hf_modules: HF_MODULES,
    gguf_rope: RopeStyle::HalfSplit,
    extras,
    layer: |config, index| LayerShape {
        norms: Norms::AROUND,
        feed_forward: FeedForwardShape::ge_glu(config.d_ff(index)),
        ..LayerShape::plain(config, index)
    },
};

pub(super) const HF_MODULES: kvik_text::files::hf::Modules = &[
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

fn extras(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    Ok(Extras {
        score_cap: cap(metadata, SCORE_CAP, 50.0)?,
        logit_cap: cap(metadata, LOGIT_CAP, LOGIT_CAP_DEFAULT)?,
        window: windows::read_or(metadata, config, 2, Some(4096))?,
        ..common(metadata, config, 46)?
    })
}

/// A soft cap, and its default if a file does not name it. A checkpoint that says `null` has none.
pub(super) fn cap(metadata: &dyn Metadata, key: Key, default: f32) -> Result<Option<f32>, ConfigError> {
    match metadata.is_null(key) {
        true => Ok(None),
        false => Ok(Some(metadata.number(key)?.unwrap_or(default))),
    }
}

/// The extras that Gemma 2 and 3 share. GGUF files do not store the scale of scores: llama.cpp recognises the
/// exception, the model with 27 billion weights, by its number of layers.
pub(super) fn common(
    metadata: &dyn Metadata,
    config: &ModelConfig,
    exception: usize,
) -> Result<Extras, ConfigError> {
    let ModelConfig { d_model, heads, head_dim, layers, .. } = *config;
    let width = if layers == exception { d_model.checked_div(heads).unwrap_or(1) } else { head_dim };
    let scalar = metadata.number(QUERY_SCALAR)?.unwrap_or(width as f32);
    Ok(Extras {
        multipliers: Multipliers { embedding: (d_model as f32).sqrt(), ..Multipliers::default() },
        attention_scale: Some(1.0 / scalar.sqrt()),
        norm_offset: if metadata.is_hf() { NORM_OFFSET } else { 0.0 },
        ..Extras::default()
    })
}
