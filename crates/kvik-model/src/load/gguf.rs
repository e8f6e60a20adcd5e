//! Reads the shape of a model from GGUF metadata.

mod unsupported;

use kvik_kernels::{WeightType, dequantize};
use kvik_text::files::gguf::{Gguf, GgufError, TensorInfo};

use super::{ConfigError, check_config, check_layers};
use crate::metadata::{Key, Metadata};
use crate::{Arch, ByLayer, Extras, ModelConfig, RopeConfig, RopeScaling};

/// Reads the shape of a model and checks it against the limits.
pub fn model_config(file: &Gguf) -> Result<ModelConfig, ConfigError> {
    let arch = arch(file)?;
    let keys = Keys { file, arch };
    let d_model = keys.count("embedding_length")?;
    let heads = keys.count("attention.head_count")?;
    let head_dim = match keys.optional_count("attention.key_length")? {
        Some(dim) => dim,
        None => d_model.checked_div(heads).unwrap_or(0),
    };
    let context = keys.count("context_length")?;
    let layers = layers(&keys)?;
    check_layers(layers, |key| keys.name_in_file(key))?;
    let (d_ff, d_ff_by_layer) = keys.by_layer("feed_forward_length", layers)?;
    let (kv_heads, kv_heads_by_layer) = keys.by_layer("attention.head_count_kv", layers)?;
    let mut config = ModelConfig {
        arch,
        name: file.text("general.name")?.unwrap_or(arch.name()).to_owned(),
        layers,
        d_model,
        d_ff: d_ff.map_or_else(|| d_ff_of_experts(&keys), Ok)?,
        heads,
        kv_heads: kv_heads.unwrap_or(heads),
        head_dim,
        vocab: vocab(file)?,
        context,
        norm_eps: norm_eps(&keys)?,
        rope: rope(&keys, head_dim, context)?,
        extras: Extras::default(),
    };
    config.extras = arch.extras(&keys, &config)?;
    config.extras.by_layer = ByLayer { kv_heads: kv_heads_by_layer, d_ff: d_ff_by_layer };
    config.extras.layers_beyond = keys.optional_count(BEYOND)?.unwrap_or(0);
    config.extras.predicts = arch.predicts() && config.extras.layers_beyond > 0;
    let value_dim = keys.optional_count("attention.value_length")?.unwrap_or(head_dim);
    // Latent attention has lengths of its own.
    if value_dim != head_dim && config.extras.latent.is_none() {
        let expected = format!("the key length, {head_dim}");
        return Err(ConfigError::new(&keys.key("attention.value_length"), value_dim, expected));
    }
    check_config(&config, |key| keys.name_in_file(key))?;
    unsupported::refuse(&keys, &config)?;
    Ok(config)
}

/// The epsilon of RMSNorm; files of Nemotron-H store it under the name of another norm's.
fn norm_eps(keys: &Keys<'_>) -> Result<f32, GgufError> {
    const KEY: &str = "attention.layer_norm_rms_epsilon";
    let other = match keys.arch {
        Arch::NemotronH | Arch::NemotronHMoe => keys.number("attention.layer_norm_epsilon")?,
        _ => None,
    };
    keys.number(KEY)?.or(other).ok_or_else(|| GgufError::MissingKey { key: keys.key(KEY) })
}

/// The default width of feed-forward layers: models with experts only may store that of an expert instead.
fn d_ff_of_experts(keys: &Keys<'_>) -> Result<usize, GgufError> {
    let of_expert = keys.optional_count("expert_feed_forward_length")?;
    of_expert.ok_or_else(|| GgufError::MissingKey { key: keys.key("feed_forward_length") })
}

/// Number of layers that compute logits. Files may have further ones that predict tokens beyond the next one.
fn layers(keys: &Keys<'_>) -> Result<usize, ConfigError> {
    let (all, beyond) = (keys.count("block_count")?, keys.optional_count(BEYOND)?.unwrap_or(0));
    let expected = || format!("fewer than the {all} layers");
    all.checked_sub(beyond)
        .filter(|&layers| layers > 0 || all == 0)
        .ok_or_else(|| ConfigError::new(&keys.key(BEYOND), beyond, expected()))
}

/// Number of layers that predict tokens beyond the next one.
const BEYOND: &str = "nextn_predict_layers";

pub(super) fn arch(file: &Gguf) -> Result<Arch, ConfigError> {
    const KEY: &str = "general.architecture";
    let name = file.text(KEY)?.ok_or(GgufError::MissingKey { key: KEY.into() })?;
    let found = Arch::ALL.iter().copied().find(|arch| arch.name() == name);
    found.ok_or_else(|| ConfigError::unknown_arch(name, |arch| Some(arch.name())))
}

/// Rows of the embedding; in a file without tensors, the length of the token list.
fn vocab(file: &Gguf) -> Result<usize, ConfigError> {
    let tokens = file.array_len("tokenizer.ggml.tokens")?;
    let rows = file.tensor("token_embd.weight").map(|info| info.rows);
    match (rows, tokens) {
        (Some(rows), Some(tokens)) if tokens > rows => Err(ConfigError::new(
            "tokenizer.ggml.tokens",
            tokens,
            format!("at most the {rows} rows of `token_embd.weight`"),
        )),
        (Some(rows), _) => Ok(rows),
        (None, Some(tokens)) => Ok(tokens),
        (None, None) => Err(GgufError::MissingKey { key: "tokenizer.ggml.tokens".into() }.into()),
    }
}

fn rope(keys: &Keys<'_>, head_dim: usize, context: usize) -> Result<RopeConfig, ConfigError> {
    Ok(RopeConfig {
        theta: keys.number("rope.freq_base")?.unwrap_or(10_000.0),
        dims: keys.optional_count("rope.dimension_count")?.unwrap_or(head_dim),
        style: keys.arch.gguf_rope(has_sections(keys)?),
        scaling: scaling(keys, context)?,
    })
}

/// Whether dimensions rotate by the position in time, and by the row and the column of an image. For text all of these
/// are the position of the token, except for a fourth section, which would not rotate.
fn has_sections(keys: &Keys<'_>) -> Result<bool, ConfigError> {
    const SECTIONS: Key = Key::gguf("rope.dimension_sections");
    if !matches!(keys.arch, Arch::Glm4 | Arch::Glm4Moe) {
        return Ok(false);
    }
    let sections = match Metadata::counts(keys, SECTIONS)? {
        Some(sections) => sections,
        None => vec![Metadata::count(keys, SECTIONS)?.unwrap_or(0); 4],
    };
    let of = |section: usize| sections.get(section).is_some_and(|&dims| dims > 0);
    match of(0) && of(1) {
        true if of(3) => {
            Err(ConfigError::new(&keys.name(SECTIONS), format!("{sections:?}"), "no fourth section"))
        }
        has_sections => Ok(has_sections),
    }
}

fn scaling(keys: &Keys<'_>, context: usize) -> Result<RopeScaling, ConfigError> {
    let legacy = keys.number("rope.scale_linear")?;
    let factor = keys.number("rope.scaling.factor")?.or(legacy).unwrap_or(1.0);
    let default_kind = if factor == 1.0 { "none" } else { "linear" };
    let kind_key = keys.key("rope.scaling.type");
    if let Some(long) = long(keys, factor, context)? {
        return Ok(long);
    }
    match keys.file.text(&kind_key)?.unwrap_or(default_kind) {
        "none" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor }),
        "yarn" => yarn(keys, factor, context),
        "longrope" => {
            let found = "longrope without both `rope_factors_long.weight` and `rope_factors_short.weight`";
            Err(ConfigError::new(&kind_key, found, "a file with both"))
        }
        other => Err(ConfigError::new(&kind_key, other, "none, linear, yarn or longrope")),
    }
}

/// LongRoPE (Phi-3 and later): files have two tensors of divisors; not all of them name the scaling method.
fn long(keys: &Keys<'_>, factor: f32, context: usize) -> Result<Option<RopeScaling>, ConfigError> {
    let [long, short] = ["rope_factors_long.weight", "rope_factors_short.weight"]
        .map(|name| keys.file.tensor(name).map(|info| (name, info)));
    let (Some(long), Some(short)) = (long, short) else { return Ok(None) };
    Ok(Some(RopeScaling::Long {
        factor,
        long: floats(keys.file, long)?,
        short: floats(keys.file, short)?,
        original_context: keys.optional_count("rope.scaling.original_context_length")?.unwrap_or(context),
        attention_factor: keys.number("rope.scaling.attn_factor")?.unwrap_or(1.0),
    }))
}

/// The values of a tensor that belongs to the configuration.
fn floats(file: &Gguf, (name, info): (&str, &TensorInfo)) -> Result<Vec<f32>, ConfigError> {
    let len = info.rows * info.cols;
    if info.ty != WeightType::F32 || len > FLOATS_MAX {
        let found = format!("{len} numbers of {}", info.ty.name());
        return Err(ConfigError::new(name, found, format!("at most {FLOATS_MAX} of f32")));
    }
    let mut values = vec![0.0; len];
    dequantize(info.ty, file.data(info), &mut values);
    Ok(values)
}

/// Maximum number of frequency divisors: far more than a head has.
const FLOATS_MAX: usize = 1 << 12;

fn yarn(keys: &Keys<'_>, factor: f32, context: usize) -> Result<RopeScaling, ConfigError> {
    // Both keys multiply the derived factor, as in llama.cpp; the logarithmic one divides it again.
    let log_multiplier = keys.number("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0);
    let log_multiplier = keys.arch.yarn_log_multiplier(log_multiplier);
    let attn = keys.number("rope.scaling.attn_factor")?.unwrap_or(1.0)
        * keys.number("rope.scaling.yarn_attn_factor")?.unwrap_or(1.0)
        / if factor > 1.0 { 0.1 * log_multiplier * factor.ln() + 1.0 } else { 1.0 };
    Ok(RopeScaling::Yarn {
        factor,
        original_context: keys.optional_count("rope.scaling.original_context_length")?.unwrap_or(context),
        beta_fast: keys.number("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
        beta_slow: keys.number("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
        attention_factor: (attn != 1.0).then(|| attn * (0.1 * factor.ln() + 1.0)),
        // GGUF has no key for it, and only gpt-oss was trained without.
        truncate: keys.arch != Arch::GptOss,
    })
}

/// Metadata keys of one architecture, without their prefix: `block_count` reads `llama.block_count`.
struct Keys<'a> {
    file: &'a Gguf,
    arch: Arch,
}

impl Keys<'_> {
    fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.arch.name())
    }

    /// The name of a setting, which may be a tensor.
    fn name_in_file(&self, key: Key) -> String {
        match key.gguf {
            Some(tensor) if tensor.ends_with(".weight") => tensor.to_owned(),
            _ => self.name(key),
        }
    }

    fn optional_count(&self, suffix: &str) -> Result<Option<usize>, GgufError> {
        let key = self.key(suffix);
        let value = match self.file.is_array(&key) {
            true => self.file.same_integer(&key, self.arch.is_hybrid())?,
            false => self.file.integer(&key)?,
        };
        // A count beyond usize is as wrong as the largest usize; `check_config` refuses both.
        Ok(value.map(|value| usize::try_from(value).unwrap_or(usize::MAX)))
    }

    /// A count that may differ between layers: the maximum, and, if they differ, that of each layer.
    fn by_layer(&self, suffix: &str, layers: usize) -> Result<(Option<usize>, Vec<usize>), ConfigError> {
        let key = self.key(suffix);
        // Counts of hybrids are 0 for layers that lack the part, and otherwise equal.
        if !self.file.is_array(&key) || self.arch.is_hybrid() {
            return Ok((self.optional_count(suffix)?, Vec::new()));
        }
        let listed = self.file.integers(&key)?.unwrap_or_default();
        // Files may list additional layers, which predict tokens beyond the next one.
        let Some(listed) = listed.get(..layers) else {
            let expected = format!("a value for each of {layers} layers");
            return Err(ConfigError::new(&key, format!("{} values", listed.len()), expected));
        };
        let count = |&value: &i64| {
            let expected = "a non-negative integer for each layer";
            usize::try_from(value).map_err(|_| ConfigError::new(&key, value, expected))
        };
        let counts: Vec<usize> = listed.iter().map(count).collect::<Result<_, _>>()?;
        let most = counts.iter().copied().max();
        let same = counts.iter().all(|count| Some(*count) == most);
        Ok((most, if same { Vec::new() } else { counts }))
    }

    fn count(&self, suffix: &str) -> Result<usize, GgufError> {
        self.optional_count(suffix)?.ok_or_else(|| GgufError::MissingKey { key: self.key(suffix) })
    }

    fn number(&self, suffix: &str) -> Result<Option<f32>, GgufError> {
        Ok(self.file.number(&self.key(suffix))?.map(|value| value as f32))
    }
}

impl Metadata for Keys<'_> {
    fn is_hf(&self) -> bool {
        false
    }

    fn count(&self, key: Key) -> Result<Option<usize>, ConfigError> {
        match key.gguf {
            Some(suffix) => Ok(self.optional_count(suffix)?),
            None => Ok(None),
        }
    }

    fn number(&self, key: Key) -> Result<Option<f32>, ConfigError> {
        match key.gguf {
            Some(suffix) => Ok(Keys::number(self, suffix)?),
            None => Ok(None),
        }
    }

    fn flag(&self, key: Key) -> Result<Option<bool>, ConfigError> {
        match key.gguf {
            Some(suffix) => Ok(self.file.boolean(&self.key(suffix))?),
            None => Ok(None),
        }
    }

    fn flags(&self, key: Key) -> Result<Option<Vec<bool>>, ConfigError> {
        let Some(key) = key.gguf.map(|suffix| self.key(suffix)) else { return Ok(None) };
        match self.file.is_array(&key) {
            true => Ok(self.file.flags(&key)?),
            false => Ok(None),
        }
    }

    fn counts(&self, key: Key) -> Result<Option<Vec<usize>>, ConfigError> {
        let Some(key) = key.gguf.map(|suffix| self.key(suffix)) else { return Ok(None) };
        let count = |value: i64| {
            usize::try_from(value).map_err(|_| ConfigError::new(&key, value, "non-negative integers"))
        };
        match self.file.is_array(&key) {
            true => {
                self.file.integers(&key)?.map(|values| values.into_iter().map(count).collect()).transpose()
            }
            false => Ok(None),
        }
    }

    fn numbers(&self, key: Key) -> Result<Option<Vec<f32>>, ConfigError> {
        match key.gguf {
            Some(suffix) => Ok(self.file.floats(&self.key(suffix))?),
            None => Ok(None),
        }
    }

    fn texts(&self, key: Key) -> Result<Option<Vec<String>>, ConfigError> {
        let Some(key) = key.gguf.map(|suffix| self.key(suffix)) else { return Ok(None) };
        let owned = |texts: Vec<&str>| texts.into_iter().map(str::to_owned).collect();
        match self.file.is_array(&key) {
            true => Ok(self.file.strings(&key)?.map(owned)),
            false => Ok(self.file.text(&key)?.map(|text| vec![text.to_owned()])),
        }
    }

    fn is_null(&self, _: Key) -> bool {
        false
    }

    fn name(&self, key: Key) -> String {
        key.gguf.map_or_else(|| key.hf.concat(), |suffix| self.key(suffix))
    }
}
