//! Llama 4 (text): chunked attention in three of four layers; the others attend to all positions, do not rotate, and
//! scale queries by a factor of their position. In layers with experts, the weights apply to the inputs, and there is a
//! shared expert.

use super::metadata::{Key, Metadata};
use super::{Architecture, LayerShape, Presence, QkNorm, experts, recurrence, windows};
use crate::feed_forward::{ExpertsShape, FeedForwardShape, Gating, Weighted};
use crate::{ConfigError, ExpertsConfig, Extras, ModelConfig, RopeStyle, Temperature, Window};

const CHUNK: usize = 8192;
const CHUNKED: Key = Key::gguf("attention.sliding_window");
/// Settings of checkpoints that GGUF files do not store.
const CHUNK_LEN: Key = Key::hf(&["attention_chunk_size"]);
const D_FF: Key = Key::hf(&["intermediate_size"]);
const EXPERT_LAYERS: Key = Key::hf(&["moe_layers"]);
const NORMED: Key = Key::hf(&["use_qk_norm"]);
const WARMED: Key = Key::hf(&["attn_temperature_tuning"]);
const WARMTH: Key = Key::hf(&["attn_scale"]);
const WARMTH_INTERVAL: Key = Key::hf(&["floor_scale"]);
const ROTATED: Key = Key::hf(&["no_rope_layers"]);
const UNROTATED_INTERVAL: Key = Key::hf(&["no_rope_layer_interval"]);
const EXPERTS_INTERVAL: Key = Key::new("interleave_moe_layer_step", &["interleave_moe_layer_step"]);
/// GGUF files do not say whether queries and keys are normed: models with this many experts do not norm them.
const EXPERTS_WITHOUT_NORM: usize = 128;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "llama4",
    hf_names: &["Llama4ForCausalLM", "Llama4ForConditionalGeneration"],
    hf_modules: &[
        ("feed_forward.gate_proj", "ffn_gate"),
        ("feed_forward.up_proj", "ffn_up"),
        ("feed_forward.down_proj", "ffn_down"),
        ("feed_forward.router", "ffn_gate_inp"),
        // Their rows are inputs.
        ("feed_forward.experts.gate_up_proj", "ffn_gate_up_exps.turned"),
        ("feed_forward.experts.down_proj", "ffn_down_exps.turned"),
        ("feed_forward.shared_expert.gate_proj", "ffn_gate_shexp"),
        ("feed_forward.shared_expert.up_proj", "ffn_up_shexp"),
        ("feed_forward.shared_expert.down_proj", "ffn_down_shexp"),
    ],
    gguf_rope: RopeStyle::Interleaved,
    extras,
    layer: |config, index| {
        let plain = LayerShape::plain(config, index);
        let normed = config.extras.experts.is_some_and(|experts| experts.count != EXPERTS_WITHOUT_NORM);
        LayerShape {
            qkv_bias: Presence::Optional,
            output_bias: Presence::Optional,
            qk_norm: if normed && plain.rotation.is_some() { QkNorm::Rotated } else { QkNorm::Absent },
            warmed: plain.rotation.is_none(),
            feed_forward: weighted_before(plain.feed_forward),
            ..plain
        }
    },
};

fn extras(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    let experts = experts(metadata, config)?;
    if metadata.count(CHUNKED)? == Some(0) {
        return Ok(Extras { experts, ..Extras::default() });
    }
    let unrotated = unrotated(metadata, config.layers)?;
    let window = chunks(metadata, config, &unrotated)?;
    Ok(Extras { window, experts, temperature: temperature(metadata)?, unrotated, ..Extras::default() })
}

/// The chunks of the model. If a checkpoint does not list the chunked layers, those that rotate are chunked.
fn chunks(
    metadata: &dyn Metadata,
    config: &ModelConfig,
    unrotated: &[bool],
) -> Result<Option<Window>, ConfigError> {
    let window = windows::read_or(metadata, config, 4, Some(CHUNK))?;
    let Some(mut window) = window.map(|window| Window { positions: CHUNK, chunked: true, ..window }) else {
        return Ok(None);
    };
    if metadata.is_hf() {
        if metadata.texts(windows::LAYER_TYPES)?.is_none() {
            window.layers = unrotated.iter().map(|unrotated| !unrotated).collect();
        }
        if window.layers.contains(&true) {
            window.positions = metadata.needed_count(CHUNK_LEN)?;
        }
    }
    Ok(Some(window))
}

fn experts(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Option<ExpertsConfig>, ConfigError> {
    let Some(mut experts) = experts::read(metadata, config, false)? else { return Ok(None) };
    experts.interval = metadata.needed_count(EXPERTS_INTERVAL)?.max(1);
    if metadata.is_hf() {
        experts.d_ff = metadata.needed_count(D_FF)?;
    }
    experts.shared_d_ff = experts.d_ff;
    let listed = metadata.counts(EXPERT_LAYERS)?;
    if let Some(listed) = listed.filter(|listed| !listed.iter().copied().eq(expert_layers(&experts, config)))
    {
        let expected = format!("every layer of number {}", experts.interval);
        return Err(ConfigError::new(&metadata.name(EXPERT_LAYERS), format!("{listed:?}"), expected));
    }
    let normed = experts.count != EXPERTS_WITHOUT_NORM;
    match metadata.flag(NORMED)?.filter(|&said| said != normed) {
        Some(said) => {
            let expected = format!("{normed} with {} experts", experts.count);
            Err(ConfigError::new(&metadata.name(NORMED), said, expected))
        }
        None => Ok(Some(experts)),
    }
}

fn expert_layers(experts: &ExpertsConfig, config: &ModelConfig) -> impl Iterator<Item = usize> {
    (0..config.layers).filter(|&layer| experts.has_layer(layer))
}

fn temperature(metadata: &dyn Metadata) -> Result<Option<Temperature>, ConfigError> {
    if !metadata.flag(WARMED)?.unwrap_or(true) {
        return Ok(None);
    }
    let scale = metadata.number(WARMTH)?.unwrap_or(0.1);
    let interval = metadata.count(WARMTH_INTERVAL)?.unwrap_or(CHUNK);
    Ok(Some(Temperature { scale, interval, offset: 1.0 }))
}

/// Layers that do not rotate: those that a checkpoint lists, otherwise every fourth or every `n`th.
fn unrotated(metadata: &dyn Metadata, layers: usize) -> Result<Vec<bool>, ConfigError> {
    if let Some(rotated) = metadata.flags(ROTATED)?.filter(|rotated| !rotated.is_empty()) {
        let rotated = recurrence::for_each(metadata, ROTATED, rotated, layers)?;
        return Ok(rotated.into_iter().map(|rotated| !rotated).collect());
    }
    match metadata.count(UNROTATED_INTERVAL)?.unwrap_or(4) {
        0 => Err(ConfigError::new(&metadata.name(UNROTATED_INTERVAL), 0, "at least 1")),
        interval => Ok((1..=layers).map(|layer| layer.is_multiple_of(interval)).collect()),
    }
}

fn weighted_before(shape: FeedForwardShape) -> FeedForwardShape {
    match shape {
        FeedForwardShape::Experts(experts) => FeedForwardShape::Experts(ExpertsShape {
            gating: Gating::SigmoidOfChosen,
            weighted: Weighted::Input,
            ..experts
        }),
        dense => dense,
    }
}
