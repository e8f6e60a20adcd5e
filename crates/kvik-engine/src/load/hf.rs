//! Reads the shape of a model from `config.json`.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{ConfigError, check_config, check_layers};
use crate::files::hf::Names;
use crate::model::metadata::{Key, Metadata};
use crate::model::{Arch, Extras, ModelConfig, RopeConfig, RopeScaling};

/// The fields that all architectures use; others are left for those that know them.
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
    quantization_config: Option<Value>,
    /// Layers behind the others that predict tokens beyond the next one; their tensors are not read.
    #[serde(default)]
    num_nextn_predict_layers: usize,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct HfRope {
    rope_type: Option<String>,
    /// What older files call the same; some have both.
    #[serde(rename = "type")]
    older_type: Option<String>,
    rope_theta: Option<f32>,
    factor: Option<f32>,
    low_freq_factor: Option<f32>,
    high_freq_factor: Option<f32>,
    original_max_position_embeddings: Option<usize>,
    beta_fast: Option<f32>,
    beta_slow: Option<f32>,
    attention_factor: Option<f32>,
    mscale: Option<f32>,
    mscale_all_dim: Option<f32>,
    long_factor: Option<Vec<f32>>,
    short_factor: Option<Vec<f32>>,
    partial_rotary_factor: Option<f32>,
    /// Of newer files of Gemma: those of layers that see all positions, and of those that see a window.
    full_attention: Option<Box<HfRope>>,
    sliding_attention: Option<Box<HfRope>>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl HfConfig {
    /// Reads `config.json`. What a model that also takes images says of its decoder stands in a part of its own.
    pub(crate) fn new(json: Value) -> Result<HfConfig, serde_json::Error> {
        let mut merged = json;
        if let Some(Value::Object(text)) = merged.get_mut("text_config").map(Value::take)
            && let Some(all) = merged.as_object_mut()
        {
            let kept = all.get("architectures").cloned();
            all.extend(text);
            all.extend(kept.map(|names| ("architectures".to_owned(), names)));
        }
        if let Some(all) = merged.as_object_mut() {
            add_defaults(all);
        }
        serde_json::from_value(merged.clone()).map_err(|error| name_field(&merged, error))
    }

    /// How the tensors of the directory are named.
    pub(crate) fn names(&self, config: &ModelConfig) -> Names {
        let is_multimodal = self.architectures.first().is_some_and(|name| name.ends_with(MULTIMODAL));
        let beyond = config.layers..config.layers.saturating_add(self.num_nextn_predict_layers);
        Names { modules: config.arch.hf_modules(), is_multimodal, beyond }
    }
}

/// The error of a field whose value is of another kind, with its name: it is the one without which the error is another.
fn name_field(config: &Value, error: serde_json::Error) -> serde_json::Error {
    let is_same = |key: &str| {
        let mut without = config.clone();
        without.as_object_mut().and_then(|fields| fields.remove(key));
        serde_json::from_value::<HfConfig>(without).is_err_and(|other| other.to_string() == error.to_string())
    };
    match config.as_object().and_then(|fields| fields.keys().find(|key| !is_same(key))) {
        Some(key) => serde::de::Error::custom(format!("`{key}`: {error}")),
        None => error,
    }
}

/// The end of the names of models that also take images or sounds.
const MULTIMODAL: &str = "ForConditionalGeneration";

/// What configurations of Gemma leave out where it is what the library has for granted.
fn add_defaults(config: &mut Map<String, Value>) {
    let first = config.get("architectures").and_then(|names| names[0].as_str()).unwrap_or_default();
    if !first.starts_with("Gemma") {
        return;
    }
    let mut defaults = vec![("tie_word_embeddings", json!(true))];
    if first.starts_with("Gemma3For") {
        defaults.extend([
            ("num_attention_heads", json!(8)),
            ("num_key_value_heads", json!(4)),
            ("head_dim", json!(256)),
            ("vocab_size", json!(262_208)),
            ("max_position_embeddings", json!(131_072)),
            ("rms_norm_eps", json!(1e-6)),
            ("rope_theta", json!(1e6)),
        ]);
    }
    for (key, value) in defaults {
        config.entry(key).or_insert(value);
    }
}

/// Reads the shape of a model and checks it against the limits.
pub(crate) fn model_config(hf: &HfConfig, name: &str) -> Result<ModelConfig, ConfigError> {
    let arch = arch(&hf.architectures)?;
    refuse_unsupported(hf, arch)?;
    let heads = hf.num_attention_heads;
    let head_dim = hf.head_dim.unwrap_or(hf.hidden_size.checked_div(heads).unwrap_or(0));
    let rope = hf.rope_parameters.clone().or(hf.rope_scaling.clone()).unwrap_or_default();
    let (rope, windowed) = of_kinds_of_layers(rope);
    let scaling = scaling(&rope, hf)?;
    let rotated = hf.partial_rotary_factor.or(rope.partial_rotary_factor).or(arch.hf_rotated());
    let mut config = ModelConfig {
        arch,
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
            dims: rotary_dims(head_dim, rotated),
            style: arch.hf_rope(),
            scaling,
        },
        extras: Extras::default(),
    };
    let fields = Fields { hf, rope: &rope, windowed: &windowed };
    check_layers(config.layers, |key| fields.name(key))?;
    config.extras = arch.extras(&fields, &config)?;
    check_activation(hf, &config)?;
    check_config(&config, |key| fields.name(key))?;
    Ok(config)
}

/// The activation that a file names, by either name, is the one that the architecture computes.
fn check_activation(hf: &HfConfig, config: &ModelConfig) -> Result<(), ConfigError> {
    let newer = hf.others.get("hidden_activation").and_then(Value::as_str);
    let name = if newer.is_some() { "hidden_activation" } else { "hidden_act" };
    let expected = if config.arch.has_gelu() { "gelu_pytorch_tanh" } else { "silu" };
    // Gemma's first configurations name an approximation that their models do not use.
    match newer.or(hf.hidden_act.as_deref()) {
        Some(act) if act != expected && !(config.arch.has_gelu() && act == "gelu") => {
            Err(ConfigError::new(name, act, expected))
        }
        _ => Ok(()),
    }
}

fn arch(architectures: &[String]) -> Result<Arch, ConfigError> {
    let name = architectures.first().map_or("none", String::as_str);
    let found = Arch::ALL.iter().copied().find(|arch| arch.hf_names().contains(&name));
    found.ok_or_else(|| ConfigError::unknown_arch(name, |arch| arch.hf_names().first().copied()))
}

/// The parameters of a rotation, and those of layers with a window where these have their own.
fn of_kinds_of_layers(rope: HfRope) -> (HfRope, Map<String, Value>) {
    let theta = rope.sliding_attention.as_ref().and_then(|rope| rope.rope_theta);
    let windowed = theta.map(|theta| (WINDOWED_THETA.to_owned(), theta.into())).into_iter().collect();
    (rope.full_attention.clone().map_or(rope, |full| *full), windowed)
}

/// What files call the base of layers with a window where it stands by itself.
const WINDOWED_THETA: &str = "rope_local_base_freq";

fn refuse_unsupported(hf: &HfConfig, arch: Arch) -> Result<(), ConfigError> {
    if hf.use_sliding_window == Some(true) {
        return Err(ConfigError::new("use_sliding_window", true, "false"));
    }
    if let Some(quantization) = &hf.quantization_config {
        let method = quantization["quant_method"].as_str().unwrap_or("unknown").to_owned();
        if !(arch == Arch::GptOss && method == MXFP4) {
            return Err(ConfigError::new("quantization_config", method, "no quantisation; use a GGUF file"));
        }
    } else if arch == Arch::GptOss {
        // Those that were dequantised transpose their experts.
        let expected = format!("{MXFP4}; use a GGUF file");
        return Err(ConfigError::new("quantization_config", "none", expected));
    }
    let others = |key: &str, allowed: &[Value]| match hf.others.get(key) {
        Some(value) if !allowed.contains(value) => {
            Err(ConfigError::new(key, value, "another; use a GGUF file"))
        }
        _ => Ok(()),
    };
    // Layers without experts between layers with them, and bounds on queries, keys and values.
    others("mlp_only_layers", &[Value::Null, json!([])])?;
    others("moe_layer_freq", &[Value::Null, json!(1)])?;
    others("clip_qkv", &[Value::Null])?;
    match arch {
        Arch::Llama4 | Arch::Gemma3n | Arch::Gemma4 => {
            Err(ConfigError::new("architectures", &hf.architectures[0], "another; use a GGUF file"))
        }
        _ => Ok(()),
    }
}

/// How the experts of gpt-oss are quantised.
const MXFP4: &str = "mxfp4";

fn rotary_dims(head_dim: usize, factor: Option<f32>) -> usize {
    match factor {
        None => head_dim,
        Some(factor) => (head_dim as f32 * factor) as usize,
    }
}

fn scaling(rope: &HfRope, hf: &HfConfig) -> Result<RopeScaling, ConfigError> {
    let context = hf.max_position_embeddings;
    let original_context = rope.original_max_position_embeddings.unwrap_or(context);
    match rope.rope_type.as_deref().or(rope.older_type.as_deref()).unwrap_or("default") {
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
            attention_factor: rope.attention_factor.or_else(|| yarn_factor(rope)),
        }),
        "longrope" => long(rope, hf),
        other => Err(ConfigError::new("rope_type", other, "default, linear, llama3, yarn or longrope")),
    }
}

/// The factor on cosines and sines of files that scale all dimensions otherwise than these.
fn yarn_factor(rope: &HfRope) -> Option<f32> {
    let (all, factor) = (rope.mscale_all_dim.filter(|&all| all != 0.0)?, rope.factor.filter(|&f| f > 1.0)?);
    let scale = |multiplier: f32| 0.1 * multiplier * factor.ln() + 1.0;
    Some(scale(rope.mscale.unwrap_or(1.0)) / scale(all))
}

/// LongRoPE (arXiv 2402.13753): divisors for prompts within the original context, and for longer ones.
fn long(rope: &HfRope, hf: &HfConfig) -> Result<RopeScaling, ConfigError> {
    let divisors = |field: &str, list: &Option<Vec<f32>>| {
        list.clone()
            .ok_or_else(|| ConfigError::new(&format!("longrope {field}"), "missing", "an array of numbers"))
    };
    // Phi-3 names the original context outside of the scaling.
    let outside = hf.others.get("original_max_position_embeddings").and_then(Value::as_u64);
    let original = rope.original_max_position_embeddings.or(outside.map(|original| original as usize));
    let original = original.unwrap_or(hf.max_position_embeddings).max(2) as f32;
    let stretch = rope.factor.unwrap_or(hf.max_position_embeddings as f32 / original).max(1.0);
    Ok(RopeScaling::Long {
        factor: 1.0,
        long: divisors("long_factor", &rope.long_factor)?,
        short: divisors("short_factor", &rope.short_factor)?,
        original_context: original as usize,
        attention_factor: rope.attention_factor.unwrap_or((1.0 + stretch.ln() / original.ln()).sqrt()),
    })
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

/// The settings of an architecture, by the names of `config.json` or of its parameters of the rotation.
struct Fields<'a> {
    hf: &'a HfConfig,
    rope: &'a HfRope,
    /// Of the rotation of layers with a window.
    windowed: &'a Map<String, Value>,
}

impl Fields<'_> {
    fn value(&self, name: &str) -> Option<&Value> {
        [&self.hf.others, &self.rope.others, self.windowed].iter().find_map(|place| place.get(name))
    }

    fn get<T>(
        &self,
        key: Key,
        expected: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let mut found = key.hf.iter().filter_map(|name| Some((name, self.value(name)?)));
        let found = found.find(|(_, value)| !value.is_null());
        let bad = |(name, value): (&&str, &Value)| ConfigError::new(name, value, expected);
        found.map(|found| read(found.1).ok_or_else(|| bad(found))).transpose()
    }
}

impl Metadata for Fields<'_> {
    fn is_hf(&self) -> bool {
        true
    }

    fn count(&self, key: Key) -> Result<Option<usize>, ConfigError> {
        self.get(key, "a count", |value| usize::try_from(value.as_u64()?).ok())
    }

    fn number(&self, key: Key) -> Result<Option<f32>, ConfigError> {
        self.get(key, "a number", |value| Some(value.as_f64()? as f32))
    }

    fn flag(&self, key: Key) -> Result<Option<bool>, ConfigError> {
        self.get(key, "true or false", Value::as_bool)
    }

    fn flags(&self, key: Key) -> Result<Option<Vec<bool>>, ConfigError> {
        let truth = |value: &Value| value.as_bool().or(value.as_u64().map(|number| number != 0));
        let flags = |value: &Value| match value {
            Value::Array(values) => Some(Some(values.iter().map(truth).collect::<Option<_>>()?)),
            Value::Number(_) => Some(None),
            _ => None,
        };
        Ok(self.get(key, "a value for each layer", flags)?.flatten())
    }

    fn counts(&self, key: Key) -> Result<Option<Vec<usize>>, ConfigError> {
        let count = |value: &Value| usize::try_from(value.as_u64()?).ok();
        self.get(key, "an array of counts", |value| value.as_array()?.iter().map(count).collect())
    }

    fn numbers(&self, key: Key) -> Result<Option<Vec<f32>>, ConfigError> {
        self.get(key, "an array of numbers", |value| {
            value.as_array()?.iter().map(|value| Some(value.as_f64()? as f32)).collect()
        })
    }

    fn texts(&self, key: Key) -> Result<Option<Vec<String>>, ConfigError> {
        self.get(key, "text", |value| match value {
            Value::String(text) => Some(vec![text.clone()]),
            Value::Array(values) => values.iter().map(|value| Some(value.as_str()?.to_owned())).collect(),
            _ => None,
        })
    }

    fn name(&self, key: Key) -> String {
        let said = key.hf.iter().find(|name| self.value(name).is_some());
        said.or(key.hf.first()).copied().or(key.gguf).unwrap_or_default().to_owned()
    }
}

#[cfg(test)]
mod tests;
