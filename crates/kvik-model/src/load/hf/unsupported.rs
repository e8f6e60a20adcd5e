//! Settings of `config.json` that kvik does not support: refused by name.

use serde_json::{Value, json};

use super::{ConfigError, HfConfig};
use crate::{Arch, ModelConfig};

/// The quantisation of gpt-oss's experts.
const MXFP4: &str = "mxfp4";

/// Returns an error for settings that change the computation in an unsupported way.
pub(super) fn refuse(hf: &HfConfig, arch: Arch) -> Result<(), ConfigError> {
    refuse_quantised(hf, arch)?;
    let only = |key: &str, allowed: &[Value]| match hf.settings.get(key) {
        Some(value) if !value.is_null() && !allowed.contains(value) => {
            Err(ConfigError::new(key, value, "another; use a GGUF file"))
        }
        _ => Ok(()),
    };
    only("use_sliding_window", &[json!(false)])?;
    // Layers without experts between layers with experts, and clipping of queries, keys and values.
    only("mlp_only_layers", &[json!([])])?;
    only("moe_layer_freq", &[json!(1)])?;
    only("clip_qkv", &[])?;
    // Experts with fewer dimensions than the stream.
    only("moe_latent_size", &[])?;
    only("topk_method", &[json!("greedy"), json!("group_limited_greedy"), json!("noaux_tc")])?;
    only("scoring_func", &[json!("softmax"), json!("sigmoid")])?;
    only("rope_interleave", &[json!(true)])?;
    only("attn_output_gate", &[json!(true)])?;
    only("altup_correct_scale", &[json!(true)])?;
    only("is_causal", &[json!(true)])?;
    // Bidirectional attention within images does not affect text.
    only("use_bidirectional_attention", &[json!(false), json!("vision")])?;
    only("mlp_hidden_act", &[json!("relu2")])?;
    only("mamba_hidden_act", &[json!("silu")])?;
    refuse_other_activation(hf)?;
    refuse_bounded_steps(hf)
}

/// Rejects other constants in the activation of gpt-oss, which GGUF files cannot store either.
fn refuse_other_activation(hf: &HfConfig) -> Result<(), ConfigError> {
    for (key, constant) in [("swiglu_limit", 7.0_f32), ("swiglu_alpha", 1.702)] {
        let found = hf.settings.get(key).filter(|value| !value.is_null());
        let is_other = |value: &&Value| value.as_f64().map(|number| number as f32) != Some(constant);
        if let Some(found) = found.filter(is_other) {
            return Err(ConfigError::new(key, found, format!("{constant}, the constant in kvik's kernel,")));
        }
    }
    Ok(())
}

fn refuse_quantised(hf: &HfConfig, arch: Arch) -> Result<(), ConfigError> {
    const KEY: &str = "quantization_config";
    match hf.settings.get(KEY).filter(|value| !value.is_null()) {
        Some(quantization) => {
            let method = quantization["quant_method"].as_str().unwrap_or("unknown").to_owned();
            match arch == Arch::GptOss && method == MXFP4 {
                true => Ok(()),
                false => Err(ConfigError::new(KEY, method, "no quantisation; use a GGUF file")),
            }
        }
        // Dequantised checkpoints store their experts transposed.
        None if arch == Arch::GptOss => {
            Err(ConfigError::new(KEY, "none", format!("{MXFP4}; use a GGUF file")))
        }
        None => Ok(()),
    }
}

/// Rejects bounds on the time steps of Mamba 2 other than 0 and infinity: they are positive already.
fn refuse_bounded_steps(hf: &HfConfig) -> Result<(), ConfigError> {
    const KEY: &str = "time_step_limit";
    let Some(limits) = hf.settings.get(KEY).filter(|value| !value.is_null()) else { return Ok(()) };
    let infinite = |value: &Value| value.is_null() || value["__float__"] == "Infinity";
    match limits.as_array().map(Vec::as_slice) {
        Some([low, high]) if low.as_f64() == Some(0.0) && infinite(high) => Ok(()),
        _ => Err(ConfigError::new(KEY, limits, "0 to infinity; use a GGUF file")),
    }
}

/// Checks that the activation that a file names, under either key, is that of the architecture.
pub(super) fn check_activation(hf: &HfConfig, config: &ModelConfig) -> Result<(), ConfigError> {
    let expected = if config.arch.has_gelu() { "gelu_pytorch_tanh" } else { "silu" };
    let named = ["hidden_activation", "hidden_act"]
        .into_iter()
        .find_map(|name| Some((name, hf.settings.get(name).filter(|value| !value.is_null())?)));
    match named {
        // Gemma's first configurations name an approximation that their models do not use.
        Some((_, act)) if act == expected || (config.arch.has_gelu() && act == "gelu") => Ok(()),
        Some((name, act)) => Err(ConfigError::new(name, act, expected)),
        None => Ok(()),
    }
}
