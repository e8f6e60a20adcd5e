//! Reads the shape of a model from `config.json`.

mod fields;
mod plain;
mod rope;
mod unsupported;

use kvik_text::files::hf::Names;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{ConfigError, check_config, check_layers};
use crate::metadata::{Key, Metadata};
use crate::{Arch, Extras, ModelConfig, RopeConfig};
use fields::Fields;
use rope::{HfRope, context, scaling};

/// The fields that all architectures use, by their most common names; other fields are read by the architectures that
/// know them.
#[derive(Debug, Deserialize)]
pub(crate) struct HfConfig {
    #[serde(default)]
    architectures: Vec<String>,
    num_hidden_layers: usize,
    hidden_size: usize,
    intermediate_size: Option<Widths>,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: usize,
    max_position_embeddings: usize,
    rms_norm_eps: f32,
    rope_theta: Option<f32>,
    rope_scaling: Option<HfRope>,
    /// Newer files store `rope_theta` and the scaling here.
    rope_parameters: Option<HfRope>,
    partial_rotary_factor: Option<f32>,
    #[serde(default)]
    pub(crate) tie_word_embeddings: bool,
    /// Number of layers after the others that predict tokens beyond the next one.
    #[serde(default)]
    num_nextn_predict_layers: usize,
    /// The same in files of Qwen3.5 and later.
    mtp_num_hidden_layers: Option<usize>,
    /// All settings of the file.
    #[serde(skip)]
    settings: Map<String, Value>,
}

/// The width of all feed-forward layers, or of each.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Widths {
    All(usize),
    Each(Vec<usize>),
}

impl HfConfig {
    /// Reads `config.json`. A model that also takes images has the settings of its decoder in a section of its own.
    pub(crate) fn new(json: Value) -> Result<HfConfig, serde_json::Error> {
        let settings = plain::merged(json);
        let plain = plain::plain(&settings);
        let mut config = HfConfig::deserialize(&plain).map_err(|error| name_field(&plain, error))?;
        if let Value::Object(settings) = settings {
            config.settings = settings;
        }
        Ok(config)
    }

    /// The names of the directory's tensors.
    pub(crate) fn names(&self, config: &ModelConfig) -> Names {
        let is_multimodal = self.architectures.first().is_some_and(|name| name.ends_with(MULTIMODAL));
        Names {
            modules: config.arch.hf_modules(),
            is_multimodal,
            beyond: config.beyond(),
            head: config.extras.predicts.then_some(config.layers as u32),
            in_rows: config.vectors_in_rows(),
            shared_alone: config.extras.experts.is_none(),
        }
    }
}

/// Adds the name of the field to an error about the type of its value: the field that gives the error by itself. Each
/// value is tried once, so the time is that of reading the file again.
fn name_field(config: &Value, error: serde_json::Error) -> serde_json::Error {
    let valid = json!({"num_hidden_layers": 1, "hidden_size": 1, "num_attention_heads": 1, "vocab_size": 1,
        "max_position_embeddings": 1, "rms_norm_eps": 1.0});
    let message = error.to_string();
    let is_cause = |(key, value): &(&String, &Value)| {
        let mut fields = valid.clone();
        fields[key.as_str()] = (*value).clone();
        HfConfig::deserialize(&fields).is_err_and(|other| other.to_string() == message)
    };
    match config.as_object().and_then(|fields| fields.iter().find(is_cause)) {
        Some((key, _)) => serde::de::Error::custom(format!("`{key}`: {error}")),
        None => error,
    }
}

/// The suffix of the names of models that also take images or audio.
const MULTIMODAL: &str = "ForConditionalGeneration";

/// Reads the shape of a model and checks it against the limits.
pub(crate) fn model_config(hf: &HfConfig, name: &str) -> Result<ModelConfig, ConfigError> {
    let (rope, windowed) = rope::of_kinds_of_layers(hf.rope_parameters.clone(), hf.rope_scaling.clone());
    let fields = Fields { settings: &hf.settings, rope: &rope.others, windowed: &windowed };
    let arch = arch(hf, &fields)?;
    unsupported::refuse(hf, arch)?;
    check_layers(hf.num_hidden_layers, |key| fields.name(key))?;
    let heads = hf.num_attention_heads;
    let [head_dim, rotated] = dims_of_heads(hf, &fields, arch, &rope)?;
    let scaling = scaling(&rope, hf, head_dim)?;
    let (d_ff, d_ff_by_layer) = widths(hf, &fields, arch)?;
    let mut config = ModelConfig {
        arch,
        name: name.to_owned(),
        layers: hf.num_hidden_layers,
        d_model: hf.hidden_size,
        d_ff,
        heads,
        kv_heads: hf.num_key_value_heads.unwrap_or(heads),
        head_dim,
        vocab: hf.vocab_size,
        context: context(hf.max_position_embeddings, &scaling),
        norm_eps: hf.rms_norm_eps,
        rope: RopeConfig {
            theta: rope.rope_theta.or(hf.rope_theta).unwrap_or(10_000.0),
            dims: rotated,
            style: arch.hf_rope(),
            scaling,
        },
        extras: Extras::default(),
    };
    config.extras = arch.extras(&fields, &config)?;
    if !d_ff_by_layer.is_empty() {
        config.extras.by_layer.d_ff = d_ff_by_layer;
    }
    config.extras.layers_beyond = beyond(hf, arch);
    config.extras.predicts = arch.predicts() && config.extras.layers_beyond > 0;
    unsupported::check_activation(hf, &config)?;
    check_config(&config, |key| fields.name(key))?;
    Ok(config)
}

/// Number of layers that predict tokens beyond the next one; files of Qwen3-Next do not say that they have one.
fn beyond(hf: &HfConfig, arch: Arch) -> usize {
    let unsaid = usize::from(arch == Arch::Qwen3Next);
    hf.num_nextn_predict_layers.max(hf.mtp_num_hidden_layers.unwrap_or(unsaid))
}

fn arch(hf: &HfConfig, fields: &Fields<'_>) -> Result<Arch, ConfigError> {
    let name = hf.architectures.first().map_or("none", String::as_str);
    let found = plain::arch(name)
        .ok_or_else(|| ConfigError::unknown_arch(name, |arch| arch.hf_names().first().copied()))?;
    found.of_checkpoint(fields)
}

/// The dimensions of a head, and how many of them rotate.
fn dims_of_heads(
    hf: &HfConfig,
    fields: &Fields<'_>,
    arch: Arch,
    rope: &HfRope,
) -> Result<[usize; 2], ConfigError> {
    if let Some([stored, rotated]) = arch.hf_latent_dims(fields)? {
        return Ok([stored, rotated]);
    }
    let of_stream = hf.hidden_size.checked_div(hf.num_attention_heads).unwrap_or(0);
    let head_dim = hf.head_dim.unwrap_or(of_stream);
    let part = rope.part().or(hf.partial_rotary_factor).or(arch.hf_rotated());
    Ok([head_dim, part.map_or(head_dim, |part| (head_dim as f32 * part) as usize)])
}

/// The width of feed-forward layers; and that of each, if they differ.
fn widths(hf: &HfConfig, fields: &Fields<'_>, arch: Arch) -> Result<(usize, Vec<usize>), ConfigError> {
    if let Some(width) = arch.hf_width(fields)? {
        return Ok((width, Vec::new()));
    }
    match &hf.intermediate_size {
        Some(Widths::All(width)) => Ok((*width, Vec::new())),
        Some(Widths::Each(widths)) if widths.len() == hf.num_hidden_layers => {
            let most = widths.iter().copied().max().unwrap_or(0);
            let same = widths.iter().all(|&width| width == most);
            Ok((most, if same { Vec::new() } else { widths.clone() }))
        }
        Some(Widths::Each(widths)) => {
            let expected = format!("a value for each of {} layers", hf.num_hidden_layers);
            let found = format!("{} values", widths.len());
            Err(ConfigError::new("intermediate_size", found, expected))
        }
        // Models with experts only may store the width of those.
        None => Ok((fields.needed_count(WIDTH)?, Vec::new())),
    }
}

const WIDTH: Key = Key::hf(&["intermediate_size", "moe_intermediate_size"]);

#[cfg(test)]
mod tests;
