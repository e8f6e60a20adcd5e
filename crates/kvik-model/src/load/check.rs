//! Limits on the shape of a model, for files of every format.

use kvik_kernels::KvLayout;

use super::settings;
use crate::metadata::Key;
use crate::{
    ByLayer, ConfigError, Extras, INPUTS_MAX, LAYERS_MAX, ModelConfig, Multipliers, RopeConfig, RopeScaling,
    Temperature, Window,
};

/// Rejects shapes that are contradictory, or so large that arithmetic on them could overflow. `key` returns the name of
/// a setting in the file.
pub(crate) fn check_config(config: &ModelConfig, key: impl Fn(Key) -> String) -> Result<(), ConfigError> {
    check(config).map_err(|error| with_key(error, key))
}

/// Rejects a number of layers that is out of range, before anything is read by layer.
pub(crate) fn check_layers(layers: usize, key: impl Fn(Key) -> String) -> Result<(), ConfigError> {
    ConfigError::within("number of layers", layers, LAYERS_MAX).map_err(|error| with_key(error, key))
}

fn with_key(error: ConfigError, key: impl Fn(Key) -> String) -> ConfigError {
    error.with_key(|field| settings::key_of(field).map(&key))
}

fn check(config: &ModelConfig) -> Result<(), ConfigError> {
    ConfigError::within("number of layers", config.layers, LAYERS_MAX)?;
    ConfigError::within("embedding length", config.d_model, 1 << 16)?;
    ConfigError::within("feed-forward length", config.d_ff, 1 << 20)?;
    ConfigError::within("number of heads", config.heads, 1024)?;
    head_dim(config.head_dim)?;
    ConfigError::within("vocabulary", config.vocab, 1 << 21)?;
    ConfigError::within("context length", config.context, 1 << 27)?;
    check_kv_heads(config.heads, config.kv_heads)?;
    real("norm epsilon", config.norm_eps, 0.0, 1.0)?;
    check_rope(&config.rope, config.head_dim)?;
    check_extras(config)
}

fn check_kv_heads(heads: usize, kv_heads: usize) -> Result<(), ConfigError> {
    ConfigError::within("number of key/value heads", kv_heads, 1024)?;
    match heads.is_multiple_of(kv_heads) {
        true => Ok(()),
        false => {
            let expected = format!("a divisor of the {heads} heads");
            Err(ConfigError::new("number of key/value heads", kv_heads, expected))
        }
    }
}

fn check_extras(config: &ModelConfig) -> Result<(), ConfigError> {
    // Without `..`, so that a new field cannot be forgotten here.
    let Extras {
        multipliers,
        attention_scale,
        temperature,
        score_cap,
        logit_cap,
        window,
        // Its lengths are checked when they are read.
        latent: _,
        experts: _,
        norm_offset,
        // Fewer than the layers of a GGUF file, and never listed.
        layers_beyond: _,
        predicts: _,
        unrotated,
        // Checked when they are read, since the errors name keys.
        recurrence: _,
        by_layer,
        sharing_layers,
        sparsity,
        altup,
        laurel_rank,
        per_layer_width,
        per_layer_rows,
    } = &config.extras;
    real("norm offset", *norm_offset, 0.0, 1.0)?;
    let Multipliers { embedding, residual, logits } = *multipliers;
    for (field, factor) in [
        ("embedding multiplier", Some(embedding)),
        ("residual multiplier", Some(residual)),
        ("logit multiplier", Some(logits)),
        ("attention scale", *attention_scale),
        ("cap of attention scores", *score_cap),
        ("cap of logits", *logit_cap),
    ] {
        factor.map_or(Ok(()), |factor| real(field, factor, 1e-9, 1e9))?;
    }
    if let Some(Temperature { scale, interval, offset }) = *temperature {
        real("scale of the temperature", scale, 0.0, 1e3)?;
        ConfigError::within("interval of the temperature", interval, 1 << 27)?;
        real("offset of the temperature", offset, 0.0, 1e9)?;
    }
    check_residual([*altup, *laurel_rank, *per_layer_width])?;
    per_layer_rows.map_or(Ok(()), |rows| ConfigError::within("per-layer embeddings", rows, config.vocab))?;
    check_by_layer(config, by_layer, sparsity)?;
    if let Some(Window { positions, chunked: _, layers, rope, divided: _, head_dim: dim }) = window {
        head_dim(*dim).map_err(|error| error.of(settings::WINDOWED))?;
        ConfigError::within("window", *positions, 1 << 27)?;
        of_each_layer("windowed layers", layers, config.layers)?;
        check_rope(rope, *dim).map_err(|error| error.of(settings::WINDOWED))?;
    }
    check_sharing(config, *sharing_layers)?;
    if !unrotated.is_empty() {
        of_each_layer("layers without rotation", unrotated, config.layers)?;
    }
    (0..config.layers).try_for_each(|index| config.layer(index).feed_forward.check())
}

/// Checks the settings of the residual stream: number of streams, rank, width.
fn check_residual([altup, laurel_rank, per_layer_width]: [Option<usize>; 3]) -> Result<(), ConfigError> {
    for (field, value, most) in [
        ("residual streams", altup, INPUTS_MAX),
        ("rank beside attention", laurel_rank, 1 << 16),
        ("width of per-layer embeddings", per_layer_width, 1 << 16),
    ] {
        value.map_or(Ok(()), |value| ConfigError::within(field, value, most))?;
    }
    Ok(())
}

/// Checks the settings that differ between layers.
fn check_by_layer(
    config: &ModelConfig,
    ByLayer { kv_heads, d_ff }: &ByLayer,
    sparsity: &[Option<f32>],
) -> Result<(), ConfigError> {
    if !sparsity.is_empty() {
        of_each_layer("sparsity", sparsity, config.layers)?;
    }
    d_ff.iter().try_for_each(|&d_ff| ConfigError::within("feed-forward length", d_ff, 1 << 20))?;
    kv_heads.iter().try_for_each(|&kv_heads| check_kv_heads(config.heads, kv_heads))
}

/// Checks that a layer that reads the keys and values of another finds one of its own shape.
fn check_sharing(config: &ModelConfig, sharing: usize) -> Result<(), ConfigError> {
    let field = "layers that share keys and values";
    if sharing >= config.layers {
        let expected = format!("fewer than the {} layers", config.layers);
        return Err(ConfigError::new(field, sharing, expected));
    }
    for index in config.layers - sharing..config.layers {
        let Some(source) = config.layer(index).source else {
            let expected = format!("a layer before them that sees the same positions as layer {index}");
            return Err(ConfigError::new(field, sharing, expected));
        };
        let shape = |index: usize| {
            let layer = config.layer(index);
            [layer.kv_heads, layer.head_dim]
        };
        if shape(source) != shape(index) {
            let [kv_heads, head_dim] = shape(source);
            let expected =
                format!("{kv_heads} key/value heads of {head_dim} in layer {index}, as in layer {source}");
            return Err(ConfigError::new(field, sharing, expected));
        }
    }
    Ok(())
}

fn of_each_layer<T>(field: &str, values: &[T], layers: usize) -> Result<(), ConfigError> {
    match values.len() == layers {
        true => Ok(()),
        false => Err(ConfigError::new(field, values.len(), format!("one value for each of {layers} layers"))),
    }
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
    ConfigError::within("rotary dimensions", rope.dims, head_dim)?;
    even("rotary dimensions", rope.dims)?;
    real("rotary base", rope.theta, 1.0, 1e12)?;
    match rope.scaling {
        RopeScaling::None => Ok(()),
        RopeScaling::Linear { factor } => scaling_factor(factor),
        // 0 pairs means that none rotates.
        RopeScaling::Proportional { pairs } if pairs <= rope.dims / 2 => Ok(()),
        RopeScaling::Proportional { pairs } => {
            let expected = format!("at most the {} of a head", rope.dims / 2);
            Err(ConfigError::new("rotated pairs", pairs, expected))
        }
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
            scaling_factor(factor)?;
            real("rope low_freq_factor", low_freq_factor, 1e-3, 1e6)?;
            real("rope high_freq_factor", high_freq_factor, 1e-3, 1e6)?;
            if high_freq_factor <= low_freq_factor {
                let expected = format!("more than low_freq_factor, {low_freq_factor}");
                return Err(ConfigError::new("rope high_freq_factor", high_freq_factor, expected));
            }
            ConfigError::within("rope original context", original_context, 1 << 27)
        }
        RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor, .. } => {
            scaling_factor(factor)?;
            ConfigError::within("rope original context", original_context, 1 << 27)?;
            real("yarn beta_fast", beta_fast, 1e-3, 1e6)?;
            real("yarn beta_slow", beta_slow, 1e-3, 1e6)?;
            attention_factor.map_or(Ok(()), |factor| real("yarn attention factor", factor, 1e-3, 1e3))
        }
        RopeScaling::Long { factor, ref long, ref short, original_context, attention_factor } => {
            scaling_factor(factor)?;
            ConfigError::within("rope original context", original_context, 1 << 27)?;
            real("rope attention factor", attention_factor, 1e-3, 1e3)?;
            divisors("rope long factors", long, rope.dims)?;
            divisors("rope short factors", short, rope.dims)
        }
    }
}

/// Checks the divisors, one for each pair of dimensions.
fn divisors(field: &str, divisors: &[f32], dims: usize) -> Result<(), ConfigError> {
    if divisors.len() != dims / 2 {
        let expected = format!("{} numbers, half of the rotary dimensions", dims / 2);
        return Err(ConfigError::new(field, format!("{} numbers", divisors.len()), expected));
    }
    divisors.iter().try_for_each(|&divisor| real(field, divisor, 1e-6, 1e6))
}

fn scaling_factor(factor: f32) -> Result<(), ConfigError> {
    real("rope scaling factor", factor, 1.0, 1e6)
}

fn even(field: &str, value: usize) -> Result<(), ConfigError> {
    match value.is_multiple_of(2) {
        true => Ok(()),
        false => Err(ConfigError::new(field, value, "an even number")),
    }
}

/// Checks a range, which NaN is always outside of.
fn real(field: &str, value: f32, low: f32, high: f32) -> Result<(), ConfigError> {
    match (low..=high).contains(&value) {
        true => Ok(()),
        false => Err(ConfigError::new(field, value, format!("{low} to {high}"))),
    }
}
