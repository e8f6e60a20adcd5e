//! Reads the shape of a model from `config.json`.

use serde::Deserialize;

use super::{ConfigError, check_config};
use crate::model::{Arch, ModelConfig, RopeConfig, RopeScaling, RopeStyle};

/// The fields that kvik uses; others are ignored.
#[derive(Debug, Deserialize)]
pub(crate) struct HfConfig {
    #[serde(default)]
    architectures: Vec<String>,
    num_hidden_layers: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: usize,
    max_position_embeddings: usize,
    rms_norm_eps: f32,
    hidden_act: Option<String>,
    rope_theta: Option<f32>,
    rope_scaling: Option<HfRope>,
    /// Newer files store `rope_theta` and the scaling here.
    rope_parameters: Option<HfRope>,
    partial_rotary_factor: Option<f32>,
    #[serde(default)]
    pub(crate) tie_word_embeddings: bool,
    use_sliding_window: Option<bool>,
    quantization_config: Option<serde_json::Value>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct HfRope {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f32>,
    factor: Option<f32>,
    low_freq_factor: Option<f32>,
    high_freq_factor: Option<f32>,
    original_max_position_embeddings: Option<usize>,
    beta_fast: Option<f32>,
    beta_slow: Option<f32>,
    attention_factor: Option<f32>,
}

/// Reads the shape of a model and checks it against the limits.
pub(crate) fn model_config(hf: &HfConfig, name: &str) -> Result<ModelConfig, ConfigError> {
    refuse_unsupported(hf)?;
    let heads = hf.num_attention_heads;
    let head_dim = hf.head_dim.unwrap_or(hf.hidden_size.checked_div(heads).unwrap_or(0));
    let rope = hf.rope_parameters.clone().or(hf.rope_scaling.clone()).unwrap_or_default();
    let scaling = scaling(&rope, hf.max_position_embeddings)?;
    let config = ModelConfig {
        arch: arch(&hf.architectures)?,
        name: name.to_owned(),
        layers: hf.num_hidden_layers,
        d_model: hf.hidden_size,
        d_ff: hf.intermediate_size,
        heads,
        kv_heads: hf.num_key_value_heads.unwrap_or(heads),
        head_dim,
        vocab: hf.vocab_size,
        context: context(hf.max_position_embeddings, &scaling),
        norm_eps: hf.rms_norm_eps,
        rope: RopeConfig {
            theta: rope.rope_theta.or(hf.rope_theta).unwrap_or(10_000.0),
            dims: rotary_dims(head_dim, hf.partial_rotary_factor),
            style: RopeStyle::HalfSplit,
            scaling,
        },
    };
    check_config(&config)?;
    Ok(config)
}

fn arch(architectures: &[String]) -> Result<Arch, ConfigError> {
    let name = architectures.first().map_or("none", String::as_str);
    let found = Arch::ALL.iter().copied().find(|arch| arch.hf_name() == name);
    found.ok_or_else(|| ConfigError::unknown_arch(name, Arch::hf_name))
}

fn refuse_unsupported(hf: &HfConfig) -> Result<(), ConfigError> {
    if let Some(act) = hf.hidden_act.as_deref().filter(|act| *act != "silu") {
        return Err(ConfigError::new("hidden_act", act, "silu"));
    }
    if hf.use_sliding_window == Some(true) {
        return Err(ConfigError::new("use_sliding_window", true, "false"));
    }
    if let Some(quantization) = &hf.quantization_config {
        let method = quantization["quant_method"].as_str().unwrap_or("unknown").to_owned();
        return Err(ConfigError::new("quantization_config", method, "no quantisation; use a GGUF file"));
    }
    Ok(())
}

fn rotary_dims(head_dim: usize, factor: Option<f32>) -> usize {
    match factor {
        None => head_dim,
        Some(factor) => (head_dim as f32 * factor) as usize,
    }
}

fn scaling(rope: &HfRope, context: usize) -> Result<RopeScaling, ConfigError> {
    let original_context = rope.original_max_position_embeddings.unwrap_or(context);
    match rope.rope_type.as_deref().unwrap_or("default") {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: needed("factor", rope.factor)? }),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: needed("factor", rope.factor)?,
            low_freq_factor: needed("low_freq_factor", rope.low_freq_factor)?,
            high_freq_factor: needed("high_freq_factor", rope.high_freq_factor)?,
            original_context,
        }),
        "yarn" => Ok(RopeScaling::Yarn {
            factor: needed("factor", rope.factor)?,
            original_context,
            beta_fast: rope.beta_fast.unwrap_or(32.0),
            beta_slow: rope.beta_slow.unwrap_or(1.0),
            attention_factor: rope.attention_factor,
        }),
        other => Err(ConfigError::new("rope_type", other, "default, linear, llama3 or yarn")),
    }
}

fn needed(field: &str, value: Option<f32>) -> Result<f32, ConfigError> {
    value.ok_or_else(|| ConfigError::new(&format!("rope {field}"), "missing", "a number"))
}

/// With YaRN the file may still declare the context of the training before the scaling.
fn context(declared: usize, scaling: &RopeScaling) -> usize {
    match *scaling {
        RopeScaling::Yarn { factor, original_context, .. } => {
            declared.max((original_context as f32 * factor) as usize)
        }
        _ => declared,
    }
}

#[cfg(test)]
mod tests;
