//! Gemma 3n (text): four residual streams of which a layer computes one (AltUp), a low-rank path parallel to attention
//! (LAuReL), embeddings of the token for every layer, sparse gates, and layers that read the keys and values of others.

use std::f64::consts::PI;

use kvik_kernels::Activation;

use super::metadata::{Key, Metadata};
use super::{Architecture, LayerShape, Norms, Presence, QkNorm, Values, gemma2, recurrence, windows};
use crate::feed_forward::{DenseShape, FeedForwardShape};
use crate::residual::INPUTS_MAX;
use crate::{ConfigError, Extras, ModelConfig, Multipliers, RopeScaling, RopeStyle};

const STREAMS: Key = Key::new("altup.num_inputs", &["altup_num_inputs"]);
/// The index of the stream that layers compute.
const ACTIVE: Key = Key::new("altup.active_idx", &["altup_active_idx"]);
pub(super) const PER_LAYER: Key =
    Key::new("embedding_length_per_layer_input", &["hidden_size_per_layer_input"]);
pub(super) const SHARING: Key = Key::new("attention.shared_kv_layers", &["num_kv_shared_layers"]);
/// Standard deviations above the mean, by layer.
const SPARSITY: Key = Key::gguf("activation_sparsity_scale");
/// Checkpoints only: the fraction of gates that are zeroed, by layer; the number of tokens that have embeddings for
/// every layer.
const NOT_LEFT: Key = Key::hf(&["activation_sparsity_pattern"]);
const PER_LAYER_ROWS: Key = Key::hf(&["vocab_size_per_layer_input"]);
const LAUREL: Key = Key::hf(&["laurel_rank"]);

/// Values that llama.cpp assumes for all models instead of reading them.
const STREAMS_DEFAULT: usize = 4;
const PER_LAYER_DEFAULT: usize = 256;
const LAUREL_RANK: usize = 64;
const STORING_LAYERS_DEFAULT: usize = 20;
const SPARSE_LAYERS_DEFAULT: usize = 10;
/// The number of standard deviations above the mean that 95 % of normal numbers stay below.
const DEVIATIONS: f32 = 1.644_853_6;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gemma3n",
    hf_names: &["Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"],
    hf_modules: &[
        ("post_attention_layernorm", "post_attention_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
        ("altup.correction_coefs", "altup_correct_coef"),
        ("altup.correct_output_scale", "altup_correct_scale.weight"),
        ("altup.prediction_coefs", "altup_predict_coef"),
        ("altup.modality_router", "altup_router"),
        ("altup.router_norm", "altup_router_norm"),
        ("laurel.linear_left", "laurel_l"),
        ("laurel.linear_right", "laurel_r"),
        ("laurel.post_laurel_norm", "laurel_post_norm"),
        ("per_layer_input_gate", "inp_gate"),
        ("per_layer_projection", "proj"),
        ("post_per_layer_input_norm", "post_norm"),
    ],
    gguf_rope: RopeStyle::HalfSplit,
    extras,
    layer: |config, index| LayerShape {
        norms: Norms::AROUND,
        qk_norm: QkNorm::Head(Presence::Required),
        values: Values::Normed { projection: Presence::Required },
        feed_forward: FeedForwardShape::Dense(DenseShape {
            sparsity: config.extras.sparsity.get(index).copied().flatten(),
            ..DenseShape::plain(config.d_ff(index), Activation::GeGlu)
        }),
        residual: config.residual(),
        ..LayerShape::plain(config, index)
    },
};

fn extras(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    let mut window = windows::read_needed(metadata, config, 5)?;
    window.rope.theta = metadata.number(windows::THETA)?.unwrap_or(windows::THETA_DEFAULT);
    window.rope.scaling = RopeScaling::None;
    let sharing = metadata.count(SHARING)?;
    if let Some(active) = metadata.count(ACTIVE)?.filter(|&active| active != 0) {
        return Err(ConfigError::new(&metadata.name(ACTIVE), active, "0"));
    }
    Ok(Extras {
        multipliers: Multipliers { embedding: (config.d_model as f32).sqrt(), ..Multipliers::default() },
        attention_scale: Some(1.0),
        logit_cap: gemma2::cap(metadata, gemma2::LOGIT_CAP, gemma2::LOGIT_CAP_DEFAULT)?,
        sharing_layers: sharing.unwrap_or(config.layers.saturating_sub(STORING_LAYERS_DEFAULT)),
        sparsity: sparsity(metadata, config.layers)?,
        altup: Some(streams(metadata)?),
        laurel_rank: Some(metadata.count(LAUREL)?.unwrap_or(LAUREL_RANK)),
        per_layer_width: Some(metadata.count(PER_LAYER)?.unwrap_or(PER_LAYER_DEFAULT)),
        per_layer_rows: per_layer_rows(metadata, config)?,
        window: Some(window),
        ..Extras::default()
    })
}

fn streams(metadata: &dyn Metadata) -> Result<usize, ConfigError> {
    match metadata.count(STREAMS)?.unwrap_or(STREAMS_DEFAULT) {
        streams if (2..=INPUTS_MAX).contains(&streams) => Ok(streams),
        streams => Err(ConfigError::new(&metadata.name(STREAMS), streams, format!("2 to {INPUTS_MAX}"))),
    }
}

/// Number of tokens that have an embedding for every layer, if those of images and audio have none.
pub(super) fn per_layer_rows(
    metadata: &dyn Metadata,
    config: &ModelConfig,
) -> Result<Option<usize>, ConfigError> {
    Ok(metadata.count(PER_LAYER_ROWS)?.filter(|&rows| rows != config.vocab))
}

/// A layer without sparsity has minus infinity.
fn sparsity(metadata: &dyn Metadata, layers: usize) -> Result<Vec<Option<f32>>, ConfigError> {
    if let Some(shares) = metadata.numbers(NOT_LEFT)? {
        let shares = recurrence::for_each(metadata, NOT_LEFT, shares, layers)?;
        return shares.into_iter().map(|share| of_share(metadata, share)).collect();
    }
    let Some(scales) = metadata.numbers(SPARSITY)? else {
        let is_sparse = |layer: usize| (layer < SPARSE_LAYERS_DEFAULT).then_some(DEVIATIONS);
        return Ok((0..layers).map(is_sparse).collect());
    };
    if scales.len() != layers || scales.iter().any(|scale| scale.is_nan() || *scale == f32::INFINITY) {
        let expected = format!("a number for each of {layers} layers");
        return Err(ConfigError::new(&metadata.name(SPARSITY), format!("{} values", scales.len()), expected));
    }
    Ok(scales.into_iter().map(|scale| (scale > 0.0).then_some(scale)).collect())
}

/// The standard deviations above the mean that correspond to a zeroed fraction; `None` for a fraction of 0.
fn of_share(metadata: &dyn Metadata, share: f32) -> Result<Option<f32>, ConfigError> {
    match share {
        0.0 => Ok(None),
        _ if share > 0.5 && share < 1.0 => Ok(Some(deviations(f64::from(share)) as f32)),
        _ => Err(ConfigError::new(&metadata.name(NOT_LEFT), share, "0, or more than 0.5 and less than 1")),
    }
}

/// The quantile of the standard normal distribution: Newton's method from the mean, which converges from below because
/// the distribution function is concave there.
fn deviations(share: f64) -> f64 {
    let density = |x: f64| (-x * x / 2.0).exp() / (2.0 * PI).sqrt();
    // The distribution function is a half plus the density times x + x^3 / 3 + x^5 / (3 * 5) + ...
    let below = |x: f64| {
        let terms = std::iter::successors(Some((x, 1.0)), |&(term, odd)| {
            Some((term * x * x / (odd + 2.0), odd + 2.0))
        });
        0.5 + density(x) * terms.map(|(term, _)| term).take(TERMS).sum::<f64>()
    };
    (0..STEPS).fold(0.0, |x, _| x + (share - below(x)) / density(x))
}

/// Enough for fractions whose distance from 1 an f32 can represent.
const TERMS: usize = 200;
const STEPS: usize = 50;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviations_are_quantiles_of_the_normal_distribution() {
        for (share, expect) in [
            (0.5, 0.0),
            (0.841_344_746_068_543, 1.0),
            (0.95, 1.644_853_626_951_472_2),
            (0.99, 2.326_347_874_040_841),
            (0.999_968_328_758_166_9, 4.0),
            (1.0 - f64::from(f32::EPSILON) / 2.0, 5.294_704_084_854_598),
        ] {
            assert!((deviations(share) - expect).abs() < 1e-6, "{share}: {}", deviations(share));
        }
    }
}
