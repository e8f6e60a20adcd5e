//! Gemma 4: layers with and without a sliding window differ in the width and number of their heads and in their
//! rotation; some read the keys and values of others; small models have embeddings of the token for every layer, and
//! one combines experts with a dense layer.

use kvik_kernels::Activation;

use super::gemma3n::{PER_LAYER, SHARING};
use super::metadata::{Key, Metadata, WINDOWED_PART};
use super::{Architecture, LayerShape, Norms, Presence, QkNorm, Values, experts, gemma2, gemma3n, windows};
use crate::feed_forward::{DenseShape, ExpertsShape, FeedForwardShape, MixedShape};
use crate::residual::ResidualShape;
use crate::{ByLayer, ConfigError, Extras, ModelConfig, Multipliers, RopeScaling, RopeStyle, Window};

/// The length of keys and of values in windowed layers.
const WINDOWED_KEY: Key = Key::new("attention.key_length_swa", &["head_dim"]);
const WINDOWED_VALUE: Key = Key::gguf("attention.value_length_swa");
/// The number of rotated dimensions in windowed layers.
const WINDOWED_DIMS: Key = Key::gguf("rope.dimension_count_swa");
/// Checkpoints only: whether keys serve as values in layers without a window, and the number of their KV heads; whether
/// layers that share keys and values are twice as wide; whether there are experts.
const KEYS_ARE_VALUES: Key = Key::hf(&["attention_k_eq_v"]);
const UNWINDOWED_KV_HEADS: Key = Key::hf(&["num_global_key_value_heads"]);
const DOUBLE: Key = Key::hf(&["use_double_wide_mlp"]);
const HAS_EXPERTS: Key = Key::hf(&["enable_moe_block"]);

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gemma4",
    hf_names: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
    hf_modules: &[
        ("post_attention_layernorm", "post_attention_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
        ("post_feedforward_layernorm_1", "post_ffw_norm_1"),
        ("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
        ("post_feedforward_layernorm_2", "post_ffw_norm_2"),
        ("layer_scalar", "layer_output_scale.weight"),
        ("per_layer_input_gate", "inp_gate"),
        ("per_layer_projection", "proj"),
        ("post_per_layer_input_norm", "post_norm"),
        ("router.proj", "ffn_gate_inp"),
        ("router.scale", "ffn_gate_inp.scale"),
        ("router.per_expert_scale", "ffn_down_exps.scale"),
        ("experts.gate_up_proj", "ffn_gate_up_exps.weight"),
        ("experts.down_proj", "ffn_down_exps.weight"),
    ],
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
    let key = if metadata.is_hf() { windows::LAYER_TYPES } else { windows::PATTERN };
    if metadata.flags(windows::PATTERN)?.is_none() && metadata.texts(windows::LAYER_TYPES)?.is_none() {
        return Err(ConfigError::new(&metadata.name(key), "missing", "a value for each layer"));
    }
    // 0 stands for none, as in llama.cpp.
    let logit_cap_default = if metadata.is_hf() { 0.0 } else { gemma2::LOGIT_CAP_DEFAULT };
    let logit_cap = metadata.number(gemma2::LOGIT_CAP)?.unwrap_or(logit_cap_default);
    let window = window(metadata, config)?;
    let sharing_layers = metadata.count(SHARING)?.unwrap_or(0);
    let per_layer = match metadata.is_hf() {
        true => metadata.count(PER_LAYER)?.unwrap_or(0),
        false => metadata.needed_count(PER_LAYER)?,
    };
    let has_experts = metadata.flag(HAS_EXPERTS)?.unwrap_or(!metadata.is_hf());
    Ok(Extras {
        multipliers: Multipliers { embedding: (config.d_model as f32).sqrt(), ..Multipliers::default() },
        attention_scale: Some(1.0),
        logit_cap: Some(logit_cap).filter(|&cap| cap != 0.0),
        sharing_layers,
        per_layer_width: Some(per_layer).filter(|&width| width > 0),
        per_layer_rows: gemma3n::per_layer_rows(metadata, config)?.filter(|_| per_layer > 0),
        experts: if has_experts { experts::read(metadata, config, true)? } else { None },
        by_layer: ByLayer {
            kv_heads: kv_heads(metadata, config, &window)?,
            d_ff: widths(metadata, config, sharing_layers)?,
        },
        window: Some(window),
        ..Extras::default()
    })
}

/// Key and value heads of each layer of a checkpoint, if layers without a window have a different number.
fn kv_heads(
    metadata: &dyn Metadata,
    config: &ModelConfig,
    window: &Window,
) -> Result<Vec<usize>, ConfigError> {
    let own = metadata.flag(KEYS_ARE_VALUES)?.unwrap_or(false);
    let said = metadata.count(UNWINDOWED_KV_HEADS)?.filter(|&heads| own && heads != config.kv_heads);
    let Some(unwindowed) = said else { return Ok(Vec::new()) };
    if !config.heads.is_multiple_of(unwindowed) {
        let expected = format!("a divisor of the {} heads", config.heads);
        return Err(ConfigError::new(&metadata.name(UNWINDOWED_KV_HEADS), unwindowed, expected));
    }
    Ok(window.layers.iter().map(|&windowed| if windowed { config.kv_heads } else { unwindowed }).collect())
}

/// Widths of the layers of a checkpoint, if those that share keys and values are wider.
fn widths(metadata: &dyn Metadata, config: &ModelConfig, sharing: usize) -> Result<Vec<usize>, ConfigError> {
    if !metadata.flag(DOUBLE)?.unwrap_or(false) || sharing == 0 {
        return Ok(Vec::new());
    }
    let storing = config.layers.saturating_sub(sharing);
    let width = |layer| if layer < storing { config.d_ff } else { config.d_ff.saturating_mul(2) };
    Ok((0..config.layers).map(width).collect())
}

fn window(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Window, ConfigError> {
    let mut window = windows::read_needed(metadata, config, 0)?;
    let head_dim = metadata.needed_count(WINDOWED_KEY)?;
    // Checkpoints have one length for both.
    let value_dim = if metadata.is_hf() { head_dim } else { metadata.needed_count(WINDOWED_VALUE)? };
    if value_dim != head_dim {
        let expected = format!("the key length, {head_dim}");
        return Err(ConfigError::new(&metadata.name(WINDOWED_VALUE), value_dim, expected));
    }
    window.head_dim = head_dim;
    // The divisors apply to the layers without a window, some of whose dimensions they leave unrotated.
    window.divided = false;
    window.rope.dims = match metadata.number(WINDOWED_PART)? {
        Some(part) => (head_dim as f32 * part) as usize,
        None => metadata.count(WINDOWED_DIMS)?.unwrap_or(config.rope.dims.min(head_dim)),
    };
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
            FeedForwardShape::Mixed(MixedShape { dense, experts, norm_eps: config.norm_eps })
        }
    }
}
