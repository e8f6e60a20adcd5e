//! Nemotron-H: each layer is one of Mamba 2, attention without rotation, or a feed-forward layer without a gate.

use kvik_kernels::Activation;
use kvik_text::files::hf::Modules;

use super::metadata::{Key, Metadata};
use super::{Architecture, LayerShape, MixingShape, Norms, Presence, recurrence};
use crate::feed_forward::{DenseShape, FeedForwardShape};
use crate::{ConfigError, Extras, ModelConfig, Recurrence, RopeStyle};

/// Widths of feed-forward layers, `[layers]`; 0 for layers of another kind.
const D_FF: Key = Key::gguf("feed_forward_length");
/// The kinds of the layers of a checkpoint: a letter for each, or a name.
const HALVES: Key = Key::hf(&["hybrid_override_pattern", "layers_block_type", "layer_types"]);

/// The kind of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Half {
    Mamba,
    Attention,
    FeedForward,
    Experts,
}

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "nemotron_h",
    hf_names: &["NemotronHForCausalLM"],
    hf_modules: HF_MODULES,
    gguf_rope: RopeStyle::HalfSplit,
    extras,
    layer: |config, index| layer(config, index, dense(config)),
};

pub(super) const HF_MODULES: Modules = &[
    ("norm", "attn_norm"),
    ("mixer.q_proj", "attn_q"),
    ("mixer.k_proj", "attn_k"),
    ("mixer.v_proj", "attn_v"),
    ("mixer.o_proj", "attn_output"),
    ("mixer.up_proj", "ffn_up"),
    ("mixer.down_proj", "ffn_down"),
    ("mixer.gate", "ffn_gate_inp"),
    ("mixer.gate.e_score_correction_bias", "exp_probs_b.bias"),
    ("mixer.experts.up_proj", "ffn_up_exps.weight"),
    ("mixer.experts.down_proj", "ffn_down_exps.weight"),
    ("mixer.shared_experts.up_proj", "ffn_up_shexp"),
    ("mixer.shared_experts.down_proj", "ffn_down_shexp"),
    ("mixer.in_proj", "ssm_in"),
    ("mixer.conv1d", "ssm_conv1d"),
    ("mixer.A_log", "ssm_a_log"),
    ("mixer.D", "ssm_d"),
    ("mixer.dt_bias", "ssm_dt.bias"),
    ("mixer.norm", "ssm_norm"),
    ("mixer.out_proj", "ssm_out"),
];

pub(super) fn extras(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    let (key, halves) = match halves(metadata)? {
        Some(halves) => (HALVES, recurrence::for_each(metadata, HALVES, halves, config.layers)?),
        None => (D_FF, halves_by_counts(metadata, config)?),
    };
    if !halves.contains(&Half::Attention) {
        return Err(recurrence::without_attention(metadata, key));
    }
    if halves.contains(&Half::FeedForward) && halves.contains(&Half::Experts) {
        let expected = "feed-forward layers of one kind; use a GGUF file";
        return Err(ConfigError::new(
            &metadata.name(key),
            "that of layers with experts and without",
            expected,
        ));
    }
    let all = |is: fn(Half) -> bool| halves.iter().map(|&half| is(half)).collect::<Vec<_>>();
    let recurrent = all(|half| half == Half::Mamba);
    let feed_forward_alone = all(|half| matches!(half, Half::FeedForward | Half::Experts));
    let recurrence = recurrence::with_matrices(metadata, config, recurrent)?;
    Ok(Extras {
        recurrence: Some(Recurrence { feed_forward_alone, ..recurrence }),
        unrotated: vec![true; config.layers],
        ..Extras::default()
    })
}

/// The kinds of layers that follow from GGUF's counts.
fn halves_by_counts(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Vec<Half>, ConfigError> {
    let alone = recurrence::by_layer(metadata, D_FF, config.layers)?;
    let alone = alone.unwrap_or_else(|| vec![false; config.layers]);
    let without_kv = recurrence::without_kv(metadata, config)?;
    let half = |(alone, without_kv)| match (alone, without_kv) {
        (true, _) => Half::FeedForward,
        (false, true) => Half::Mamba,
        (false, false) => Half::Attention,
    };
    Ok(alone.into_iter().zip(without_kv).map(half).collect())
}

/// The kinds of layers that a checkpoint lists; `None` for GGUF files.
fn halves(metadata: &dyn Metadata) -> Result<Option<Vec<Half>>, ConfigError> {
    let Some(listed) = metadata.texts(HALVES)? else { return Ok(None) };
    let names = match &listed[..] {
        [letters] => letters.chars().map(String::from).collect(),
        _ => listed,
    };
    let half = |name: &String| match name.as_str() {
        "M" | "mamba" | "linear_attention" => Ok(Half::Mamba),
        "*" | "attention" | "full_attention" => Ok(Half::Attention),
        "-" | "mlp" => Ok(Half::FeedForward),
        "E" | "moe" => Ok(Half::Experts),
        other => {
            Err(ConfigError::new(&metadata.name(HALVES), other, "M, *, - or E for each layer, or a name"))
        }
    };
    names.iter().map(half).collect::<Result<_, _>>().map(Some)
}

/// Whether a checkpoint has layers of experts.
pub(super) fn names_experts(metadata: &dyn Metadata) -> Result<bool, ConfigError> {
    Ok(halves(metadata)?.is_some_and(|halves| halves.contains(&Half::Experts)))
}

/// A layer of a single kind; `feed_forward` is used if it is a feed-forward layer.
pub(super) fn layer(config: &ModelConfig, index: usize, feed_forward: FeedForwardShape) -> LayerShape {
    let recurrence = config.extras.recurrence.as_ref();
    let alone = recurrence.is_some_and(|recurrence| recurrence.feed_forward_alone.get(index) == Some(&true));
    let shape = LayerShape {
        qkv_bias: Presence::Optional,
        output_bias: Presence::Optional,
        norms: Norms { before: Some(["attn_norm.weight"; 2]), after: None },
        ..LayerShape::plain(config, index)
    };
    match alone {
        true => LayerShape { mixing: MixingShape::Absent, feed_forward, ..shape },
        false => {
            let shape = LayerShape { feed_forward: FeedForwardShape::Absent, ..shape };
            recurrence::layer(config, index, shape, recurrence::mamba)
        }
    }
}

fn dense(config: &ModelConfig) -> FeedForwardShape {
    let plain = DenseShape::plain(config.d_ff, Activation::ReluSquared);
    FeedForwardShape::Dense(DenseShape { biases: Presence::Optional, ..plain })
}
