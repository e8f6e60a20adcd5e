//! Gemma 3n (text): four streams of which a layer computes one, a path of low rank beside attention, embeddings of the
//! token for every layer, gates of which few are left, and layers that read the keys and values of others.

use kvik_kernels::Activation;

use super::metadata::{Key, Metadata};
use super::{Architecture, LayerShape, Norms, Presence, QkNorm, Values, gemma2, windows};
use crate::model::feed_forward::{DenseShape, FeedForwardShape};
use crate::model::residual::INPUTS_MAX;
use crate::model::{ConfigError, Extras, ModelConfig, Multipliers, RopeScaling, RopeStyle};

const STREAMS: Key = Key::new("altup.num_inputs", &["altup_num_inputs"]);
/// The stream that layers compute.
const ACTIVE: Key = Key::new("altup.active_idx", &["altup_active_idx"]);
pub(super) const PER_LAYER: Key =
    Key::new("embedding_length_per_layer_input", &["hidden_size_per_layer_input"]);
pub(super) const SHARING: Key = Key::new("attention.shared_kv_layers", &["num_kv_shared_layers"]);
/// Standard deviations, by layer.
const SPARSITY: Key = Key::gguf("activation_sparsity_scale");

/// What llama.cpp knows of all models and does not ask their files for.
const STREAMS_DEFAULT: usize = 4;
const PER_LAYER_DEFAULT: usize = 256;
const LAUREL_RANK: usize = 64;
const STORING_LAYERS_DEFAULT: usize = 20;
const SPARSE_LAYERS_DEFAULT: usize = 10;
/// So many standard deviations are above 95 of 100 numbers.
const DEVIATIONS: f32 = 1.644_853_6;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gemma3n",
    hf_names: &["Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"],
    hf_modules: &[],
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
        logit_cap: Some(metadata.number(gemma2::LOGIT_CAP)?.unwrap_or(gemma2::LOGIT_CAP_DEFAULT)),
        sharing_layers: sharing.unwrap_or(config.layers.saturating_sub(STORING_LAYERS_DEFAULT)),
        sparsity: sparsity(metadata, config.layers)?,
        altup: Some(streams(metadata)?),
        laurel_rank: Some(LAUREL_RANK),
        per_layer_width: Some(metadata.count(PER_LAYER)?.unwrap_or(PER_LAYER_DEFAULT)),
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

/// A layer whose gates are all left has minus infinity.
fn sparsity(metadata: &dyn Metadata, layers: usize) -> Result<Vec<Option<f32>>, ConfigError> {
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
