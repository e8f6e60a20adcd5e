//! Settings of GGUF metadata that kvik does not support: refused by name.

use kvik_text::files::gguf::GgufError;

use super::Keys;
use crate::{ConfigError, ModelConfig, Multipliers, RopeScaling};

/// Returns an error for settings that change the computation in an unsupported way. An architecture that computes with
/// one has read it into `config`.
pub(super) fn refuse(keys: &Keys<'_>, config: &ModelConfig) -> Result<(), ConfigError> {
    only(keys, "attention.causal", true, "kvik's attention is causal")?;
    only(keys, "use_parallel_residual", false, "attention precedes the feed-forward layer")?;
    refuse_numbers(keys, config)?;
    refuse_rope(keys, &config.rope.scaling)
}

fn only(keys: &Keys<'_>, suffix: &str, value: bool, reason: &str) -> Result<(), ConfigError> {
    let key = keys.key(suffix);
    match keys.file.boolean(&key)?.filter(|&found| found != value) {
        Some(found) => Err(ConfigError::new(&key, found, format!("{value} ({reason})"))),
        None => Ok(()),
    }
}

/// Factors and limits other than those that are computed with.
fn refuse_numbers(keys: &Keys<'_>, config: &ModelConfig) -> Result<(), ConfigError> {
    let extras = &config.extras;
    let Multipliers { embedding, residual, logits } = extras.multipliers;
    let usual_scale = 1.0 / (config.head_dim as f32).sqrt();
    for (suffix, computed) in [
        ("embedding_scale", embedding),
        ("residual_scale", residual),
        // A divisor.
        ("logit_scale", 1.0 / logits),
        ("attention.scale", extras.attention_scale.unwrap_or(usual_scale)),
        ("attn_logit_softcapping", extras.score_cap.unwrap_or(0.0)),
        ("final_logit_softcapping", extras.logit_cap.unwrap_or(0.0)),
        ("attention.clamp_kqv", 0.0),
        ("attention.max_alibi_bias", 0.0),
    ] {
        // 0 stands for none, as in llama.cpp.
        if let Some(found) = other_than(keys, suffix, computed)?.filter(|&found| found != 0.0) {
            return Err(refused(keys, suffix, found, computed));
        }
    }
    Ok(())
}

/// Factors of the rotation that its scaling does not have.
fn refuse_rope(keys: &Keys<'_>, scaling: &RopeScaling) -> Result<(), ConfigError> {
    const EXTRAPOLATED: &str = "rope.scaling.yarn_ext_factor";
    let is_yarn = matches!(scaling, RopeScaling::Yarn { .. });
    let usual = if is_yarn { 1.0 } else { 0.0 };
    // A negative one is the usual one.
    let is_own = |found: &f32| found.is_nan() || *found >= 0.0;
    if let Some(found) = other_than(keys, EXTRAPOLATED, usual)?.filter(is_own) {
        return Err(refused(keys, EXTRAPOLATED, found, usual));
    }
    let is_long = matches!(scaling, RopeScaling::Long { .. });
    let factors =
        [("rope.scaling.attn_factor", is_yarn || is_long), ("rope.scaling.yarn_attn_factor", is_yarn)];
    for (suffix, _) in factors.into_iter().filter(|(_, is_read)| !is_read) {
        if let Some(found) = other_than(keys, suffix, 1.0)? {
            return Err(refused(keys, suffix, found, 1.0));
        }
    }
    Ok(())
}

/// The number of a key, if it is not this one.
fn other_than(keys: &Keys<'_>, suffix: &str, computed: f32) -> Result<Option<f32>, GgufError> {
    // Two ways to compute a scale may round differently.
    const ROUNDING: f32 = 1e-5;
    let is_same = |found: f32| (found - computed).abs() <= computed.abs() * ROUNDING;
    Ok(keys.number(suffix)?.filter(|&found| !is_same(found)))
}

fn refused(keys: &Keys<'_>, suffix: &str, found: f32, computed: f32) -> ConfigError {
    let expected = format!("{computed}, with which kvik computes `{}`,", keys.arch.name());
    ConfigError::new(&keys.key(suffix), found, expected)
}
