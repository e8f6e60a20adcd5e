//! Gemma 4: layers with a window and layers without differ in the width and number of their heads and in their
//! rotation; some read the keys and values of others; small models have embeddings of the token for every layer, and
//! one has experts beside a dense layer.

use kvik_kernels::Activation;

use super::gemma3n::{PER_LAYER, SHARING};
use super::metadata::{Key, Metadata};
use super::{Architecture, LayerShape, Norms, Presence, QkNorm, Values, experts, gemma2, windows};
use crate::model::feed_forward::{DenseShape, ExpertsShape, FeedForwardShape, MixedShape};
use crate::model::residual::ResidualShape;
use crate::model::{ConfigError, Extras, ModelConfig, Multipliers, RopeScaling, RopeStyle, Window};

/// The length of keys and of values in layers with a window.
const WINDOWED_KEY: Key = Key::gguf("attention.key_length_swa");
const WINDOWED_VALUE: Key = Key::gguf("attention.value_length_swa");
/// The rotated dimensions in layers with a window.
const WINDOWED_DIMS: Key = Key::gguf("rope.dimension_count_swa");

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gemma4",
    hf_names: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
    hf_modules: &[],
    gguf_rope: RopeStyle::HalfSplit,
    extras,
    layer: |config, index| LayerShape {
        norms: Norms::AROUND,
        qk_norm: QkNorm::Head(Presence::Required),
        values: Values::Normed { projection: Presence::Optional },
        feed_forward: feed_forward(config, index),
        residual: ResidualShape { output_scale: Presence::Optional, ..config.residual() },
        ..LayerShape::plain(config, index)
    },
};

fn extras(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    if metadata.flags(windows::PATTERN)?.is_none() {
        return Err(ConfigError::new(&metadata.name(windows::PATTERN), "missing", "a value for each layer"));
    }
    // 0 stands for none, as in llama.cpp.
    let logit_cap = metadata.number(gemma2::LOGIT_CAP)?.unwrap_or(gemma2::LOGIT_CAP_DEFAULT);
    Ok(Extras {
        multipliers: Multipliers { embedding: (config.d_model as f32).sqrt(), ..Multipliers::default() },
        attention_scale: Some(1.0),
        logit_cap: Some(logit_cap).filter(|&cap| cap != 0.0),
        sharing_layers: metadata.count(SHARING)?.unwrap_or(0),
        per_layer_width: Some(metadata.needed_count(PER_LAYER)?).filter(|&width| width > 0),
        experts: experts::read(metadata, config, true)?,
        window: Some(window(metadata, config)?),
        ..Extras::default()
    })
}

fn window(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Window, ConfigError> {
    let mut window = windows::read_needed(metadata, config, 0)?;
    let head_dim = metadata.needed_count(WINDOWED_KEY)?;
    let value_dim = metadata.needed_count(WINDOWED_VALUE)?;
    if value_dim != head_dim {
        let expected = format!("the key length, {head_dim}");
        return Err(ConfigError::new(&metadata.name(WINDOWED_VALUE), value_dim, expected));
    }
    window.head_dim = head_dim;
    // The divisors are for the layers without a window, of which they leave dimensions unrotated.
    window.divided = false;
    window.rope.dims = metadata.count(WINDOWED_DIMS)?.unwrap_or(config.rope.dims.min(head_dim));
    window.rope.theta = metadata.number(windows::THETA)?.unwrap_or(windows::THETA_DEFAULT);
    window.rope.scaling = RopeScaling::None;
    Ok(window)
}

fn feed_forward(config: &ModelConfig, index: usize) -> FeedForwardShape {
    let activation = Activation::GeGlu;
    let dense = DenseShape::plain(config.d_ff(index), activation);
    match &config.extras.experts {
        None => FeedForwardShape::Dense(dense),
        Some(experts) => {
            let (output_scale, shape) = (Presence::Optional, experts.shape());
            let experts = ExpertsShape { activation, output_scale, shared: None, ..shape };
            FeedForwardShape::Mixed(MixedShape { dense, experts })
        }
    }
}
