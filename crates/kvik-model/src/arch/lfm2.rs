//! LFM2: short convolutions in most layers, attention with norms on heads in the others.

use kvik_text::files::hf::Modules;

use super::metadata::{Key, Metadata};
use super::{Architecture, LayerShape, Presence, QkNorm, recurrence, windows};
use crate::recurrent::{RecurrentShape, ShortConvShape};
use crate::{ConfigError, Extras, ModelConfig, RopeStyle};

const WIDTH: Key = Key::new("shortconv.l_cache", &["conv_L_cache"]);

/// Checkpoints only: the width of feed-forward layers before adjustment, whether it is adjusted, and how.
const UNADJUSTED: Key = Key::hf(&["block_ff_dim", "intermediate_size"]);
const ADJUSTED: Key = Key::hf(&["block_auto_adjust_ff_dim"]);
const MULTIPLIER: Key = Key::hf(&["block_ffn_dim_multiplier"]);
const MULTIPLE: Key = Key::hf(&["block_multiple_of"]);
const MULTIPLE_DEFAULT: usize = 256;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "lfm2",
    hf_names: &["Lfm2ForCausalLM", "LFM2ForCausalLM", "Lfm2VlForConditionalGeneration"],
    hf_modules: HF_MODULES,
    gguf_rope: RopeStyle::HalfSplit,
    extras,
    layer,
};

pub(super) const HF_MODULES: Modules = &[
    ("operator_norm", "attn_norm"),
    ("ffn_norm", "ffn_norm"),
    ("self_attn.out_proj", "attn_output"),
    ("self_attn.q_layernorm", "attn_q_norm"),
    ("self_attn.k_layernorm", "attn_k_norm"),
    ("conv.in_proj", "shortconv.in_proj"),
    ("conv.conv", "shortconv.conv"),
    ("conv.out_proj", "shortconv.out_proj"),
    ("feed_forward.w1", "ffn_gate"),
    ("feed_forward.w3", "ffn_up"),
    ("feed_forward.w2", "ffn_down"),
    ("feed_forward.gate", "ffn_gate_inp"),
    ("feed_forward.expert_bias", "exp_probs_b.bias"),
    ("feed_forward.experts.gate_up_proj", "ffn_gate_up_exps.weight"),
    ("feed_forward.experts.down_proj", "ffn_down_exps.weight"),
];

/// The width of feed-forward layers of a checkpoint: two thirds of the stored width, times a factor, rounded up to a
/// multiple.
pub(super) fn width(metadata: &dyn Metadata) -> Result<Option<usize>, ConfigError> {
    if !metadata.flag(ADJUSTED)?.unwrap_or(true) {
        return Ok(None);
    }
    let multiple = metadata.count(MULTIPLE)?.unwrap_or(MULTIPLE_DEFAULT);
    if multiple == 0 {
        return Err(ConfigError::new(&metadata.name(MULTIPLE), multiple, "at least 1"));
    }
    let width = metadata.needed_count(UNADJUSTED)?.saturating_mul(2) / 3;
    let factor = metadata.number(MULTIPLIER)?.unwrap_or(1.0);
    // A value that does not fit saturates and is rejected by the range check.
    let width = (width as f64 * f64::from(factor)) as usize;
    Ok(Some(width.div_ceil(multiple).saturating_mul(multiple)))
}

pub(super) fn extras(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    let layers = recurrence::without_kv(metadata, config)?;
    // The class of checkpoints ignores the setting.
    let mut window = if metadata.is_hf() { None } else { windows::read(metadata, config, 0)? };
    if let Some(window) = &mut window {
        // All layers with attention have the window.
        window.layers = vec![true; config.layers];
    }
    let recurrence = recurrence::convolution(metadata, layers, WIDTH)?;
    Ok(Extras { window, recurrence: Some(recurrence), ..Extras::default() })
}

pub(super) fn layer(config: &ModelConfig, index: usize) -> LayerShape {
    let shape = LayerShape { qk_norm: QkNorm::Head(Presence::Required), ..LayerShape::plain(config, index) };
    recurrence::layer(config, index, shape, |recurrence| {
        RecurrentShape::ShortConv(ShortConvShape { channels: config.d_model, width: recurrence.conv_width })
    })
}
