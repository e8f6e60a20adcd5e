//! Limits on the shape of a model, for files of every format.

use kvik_kernels::KvLayout;

use crate::files::gguf::GgufError;
use crate::model::{Arch, LAYERS_MAX, ModelConfig, RopeConfig, RopeScaling};

/// Why the shape of a model was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// An architecture that kvik does not run.
    #[error("architecture {found:?} is not supported; kvik runs {known}")]
    UnknownArch {
        /// The name in the file.
        found: String,
        /// The supported ones.
        known: String,
    },
    /// A value outside its range, or one that contradicts another.
    #[error("the model's {field} is {found}, and {expected} is needed")]
    BadField {
        /// The value's name.
        field: String,
        /// The value found.
        found: String,
        /// The expected value.
        expected: String,
    },
    /// The metadata cannot be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
}

impl ConfigError {
    /// Refuses `found`; `name` is what the kind of file calls an architecture.
    pub(crate) fn unknown_arch(found: &str, name: fn(Arch) -> &'static str) -> ConfigError {
        let known: Vec<&str> = Arch::ALL.iter().copied().map(name).collect();
        ConfigError::UnknownArch { found: found.into(), known: known.join(", ") }
    }

    pub(crate) fn new(field: &str, found: impl ToString, expected: impl Into<String>) -> ConfigError {
        ConfigError::BadField { field: field.into(), found: found.to_string(), expected: expected.into() }
    }
}

/// Refuses shapes that are contradictory, or so large that arithmetic on them could overflow.
pub(crate) fn check_config(config: &ModelConfig) -> Result<(), ConfigError> {
    within("number of layers", config.layers, LAYERS_MAX)?;
    within("embedding length", config.d_model, 1 << 16)?;
    within("feed-forward length", config.d_ff, 1 << 20)?;
    within("number of heads", config.heads, 1024)?;
    within("number of key/value heads", config.kv_heads, 1024)?;
    head_dim(config.head_dim)?;
    within("vocabulary", config.vocab, 1 << 21)?;
    within("context length", config.context, 1 << 27)?;
    if !config.heads.is_multiple_of(config.kv_heads) {
        let expected = format!("a divisor of the {} heads", config.heads);
        return Err(ConfigError::new("number of key/value heads", config.kv_heads, expected));
    }
    real("norm epsilon", config.norm_eps, 0.0, 1.0)?;
    check_rope(&config.rope, config.head_dim)
}

/// The KV layout bounds the head dimension; it is even because dimensions are rotated in pairs.
fn head_dim(value: usize) -> Result<(), ConfigError> {
    let (min, max) = KvLayout::HEAD_DIMS.into_inner();
    match KvLayout::HEAD_DIMS.contains(&value) && value.is_multiple_of(2) {
        true => Ok(()),
        false => {
            Err(ConfigError::new("head dimension", value, format!("an even number from {min} to {max}")))
        }
    }
}

fn check_rope(rope: &RopeConfig, head_dim: usize) -> Result<(), ConfigError> {
    within("rotary dimensions", rope.dims, head_dim)?;
    even("rotary dimensions", rope.dims)?;
    real("rotary base", rope.theta, 1.0, 1e12)?;
    match rope.scaling {
        RopeScaling::None => Ok(()),
        RopeScaling::Linear { factor } => scaling_factor(factor),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
            scaling_factor(factor)?;
            real("rope low_freq_factor", low_freq_factor, 1e-3, 1e6)?;
            real("rope high_freq_factor", high_freq_factor, 1e-3, 1e6)?;
            if high_freq_factor <= low_freq_factor {
                let expected = format!("more than low_freq_factor, {low_freq_factor}");
                return Err(ConfigError::new("rope high_freq_factor", high_freq_factor, expected));
            }
            within("rope original context", original_context, 1 << 27)
        }
        RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor } => {
            scaling_factor(factor)?;
            within("rope original context", original_context, 1 << 27)?;
            real("yarn beta_fast", beta_fast, 1e-3, 1e6)?;
            real("yarn beta_slow", beta_slow, 1e-3, 1e6)?;
            attention_factor.map_or(Ok(()), |factor| real("yarn attention factor", factor, 1e-3, 1e3))
        }
    }
}

fn scaling_factor(factor: f32) -> Result<(), ConfigError> {
    real("rope scaling factor", factor, 1.0, 1e6)
}

fn within(field: &str, value: usize, limit: usize) -> Result<(), ConfigError> {
    match value {
        value if (1..=limit).contains(&value) => Ok(()),
        value => Err(ConfigError::new(field, value, format!("1 to {limit}"))),
    }
}

fn even(field: &str, value: usize) -> Result<(), ConfigError> {
    match value.is_multiple_of(2) {
        true => Ok(()),
        false => Err(ConfigError::new(field, value, "an even number")),
    }
}

/// NaN is outside every range.
fn real(field: &str, value: f32, low: f32, high: f32) -> Result<(), ConfigError> {
    match (low..=high).contains(&value) {
        true => Ok(()),
        false => Err(ConfigError::new(field, value, format!("{low} to {high}"))),
    }
}
