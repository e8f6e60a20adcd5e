//! DeepSeek V2 and V3, and others of that shape: latent attention, grouped experts, and a shared expert.

use kvik_kernels::KvLayout;

use super::metadata::{self, Key, Metadata};
use super::{Architecture, LayerShape, Presence, experts};
use crate::feed_forward::{ExpertsShape, FeedForwardShape};
use crate::{
    ConfigError, ExpertsConfig, Extras, LatentConfig, ModelConfig, RopeScaling, RopeStyle, Temperature,
};

const QUERY_RANK: Key = Key::new("attention.q_lora_rank", &["q_lora_rank"]);
const RANK: Key = Key::new("attention.kv_lora_rank", &["kv_lora_rank"]);
/// Lengths of a head's keys and values, in files whose matrices are split by head; in those files
/// `attention.key_length` and `attention.value_length` are the stored lengths.
const KEY_LENGTH: Key = Key::gguf("attention.key_length_mla");
const VALUE_LENGTH: Key = Key::gguf("attention.value_length_mla");
const STORED_KEY_LENGTH: Key = Key::gguf("attention.key_length");
const STORED_VALUE_LENGTH: Key = Key::gguf("attention.value_length");
const ROTATED: Key = Key::new("rope.dimension_count", &["qk_rope_head_dim"]);
const LOG_MULTIPLIER: Key = Key::new("rope.scaling.yarn_log_multiplier", &["mscale_all_dim"]);
/// Checkpoints only: the dimensions of a head's keys that do not rotate, and the length of its values.
const UNROTATED: Key = Key::hf(&["qk_nope_head_dim"]);
const VALUE: Key = Key::hf(&["v_head_dim"]);
/// Checkpoints only: how experts' scores become weights, and how groups of experts are chosen.
const SCORING: Key = Key::hf(&["scoring_func"]);
const CHOICE: Key = Key::hf(&["topk_method"]);
const TEMPERATURE: Key = Key::gguf("attention.temperature_scale");
const TEMPERATURE_LENGTH: Key = Key::gguf("attention.temperature_length");

/// Files store the YaRN multiplier times this unit.
const LOG_MULTIPLIER_UNIT: f32 = 0.1;

/// Maximum length of the vectors that queries are projected from, which is that of a residual stream.
const QUERY_RANK_MAX: usize = 1 << 16;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "deepseek2",
    hf_names: &["DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"],
    hf_modules: &[
        ("self_attn.q_a_proj", "attn_q_a"),
        ("self_attn.q_a_layernorm", "attn_q_a_norm"),
        ("self_attn.q_b_proj", "attn_q_b"),
        ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
        ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
        ("self_attn.kv_b_proj", "attn_kv_b"),
    ],
    gguf_rope: RopeStyle::Interleaved,
    extras,
    layer: |config, index| {
        let plain = LayerShape::plain(config, index);
        let latent = config.extras.latent;
        LayerShape {
            kv_heads: 1,
            head_dim: latent.map_or(plain.head_dim, |latent| latent.key_dim()),
            latent,
            feed_forward: with_bias(plain.feed_forward),
            ..plain
        }
    },
};

fn extras(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    let latent = latent(metadata, config)?;
    Ok(Extras {
        attention_scale: Some(attention_scale(metadata, config, &latent)?),
        latent: Some(latent),
        experts: experts(metadata, config)?,
        temperature: temperature(metadata)?,
        ..Extras::default()
    })
}

/// The lengths of latent attention. The stored vector fits a KV head, and the parts of a head's keys add up to its
/// length.
fn latent(metadata: &dyn Metadata, config: &ModelConfig) -> Result<LatentConfig, ConfigError> {
    let bad = |key, found: usize, expected: String| ConfigError::new(&metadata.name(key), found, expected);
    let (min, max) = KvLayout::HEAD_DIMS.into_inner();
    let rotated = metadata.needed_count(ROTATED)?;
    let rank = metadata.needed_count(RANK)?;
    if rotated == 0 || !rotated.is_multiple_of(2) || rotated >= max {
        return Err(bad(ROTATED, rotated, format!("an even number from 2 to {max}")));
    }
    if !(min..=max - rotated).contains(&rank) {
        return Err(bad(
            RANK,
            rank,
            format!("{min} to {} beside {rotated} rotated dimensions", max - rotated),
        ));
    }
    let query_rank = metadata.count(QUERY_RANK)?.unwrap_or(0);
    if query_rank > QUERY_RANK_MAX {
        return Err(bad(QUERY_RANK, query_rank, format!("0 to {QUERY_RANK_MAX}")));
    }
    let ([key_name, value_name], [key, value]) = head_lengths(metadata, config, [rank + rotated, rank])?;
    if !(rotated + 1..=max).contains(&key) {
        return Err(bad(key_name, key, format!("more than the {rotated} rotated dimensions, at most {max}")));
    }
    if !(1..=max).contains(&value) {
        return Err(bad(value_name, value, format!("1 to {max}")));
    }
    Ok(LatentConfig { query_rank, rank, unrotated: key - rotated, rotated, value })
}

/// The lengths of a head's keys and values, and the keys of these settings. `stored` are the stored lengths per
/// position.
fn head_lengths(
    metadata: &dyn Metadata,
    config: &ModelConfig,
    stored: [usize; 2],
) -> Result<([Key; 2], [usize; 2]), ConfigError> {
    if metadata.is_hf() {
        let key = metadata.needed_count(UNROTATED)?.saturating_add(metadata.needed_count(ROTATED)?);
        return Ok(([UNROTATED, VALUE], [key, metadata.needed_count(VALUE)?]));
    }
    let old = [STORED_KEY_LENGTH, STORED_VALUE_LENGTH];
    let said = [config.head_dim, metadata.count(STORED_VALUE_LENGTH)?.unwrap_or(config.head_dim)];
    if metadata.count(KEY_LENGTH)?.or(metadata.count(VALUE_LENGTH)?).is_none() {
        return Ok((old, said));
    }
    let lengths = [metadata.needed_count(KEY_LENGTH)?, metadata.needed_count(VALUE_LENGTH)?];
    for ((key, said), stored) in old.into_iter().zip(said).zip(stored) {
        if said != stored {
            return Err(ConfigError::new(&metadata.name(key), said, format!("{stored}, as the ranks say")));
        }
    }
    Ok(([KEY_LENGTH, VALUE_LENGTH], lengths))
}

/// The stored dimensions of a key in a checkpoint, and how many of them rotate.
pub(super) fn stored_dims(metadata: &dyn Metadata) -> Result<[usize; 2], ConfigError> {
    let rotated = metadata.needed_count(ROTATED)?;
    Ok([metadata.needed_count(RANK)?.saturating_add(rotated), rotated])
}

/// The scale of attention scores: with YaRN also multiplied by the square of a factor that grows with its stretch.
fn attention_scale(
    metadata: &dyn Metadata,
    config: &ModelConfig,
    latent: &LatentConfig,
) -> Result<f32, ConfigError> {
    let scale = 1.0 / ((latent.unrotated + latent.rotated) as f32).sqrt();
    let RopeScaling::Yarn { factor, attention_factor, .. } = config.rope.scaling else { return Ok(scale) };
    let stretch = factor.max(1.0).ln();
    let log_multiplier = metadata.number(LOG_MULTIPLIER)?.unwrap_or(0.0);
    // In checkpoints the factor of cosines and sines applies to those only.
    let (log_multiplier, rotated) = match metadata.is_hf() {
        true => (log_multiplier, 1.0),
        false => (log_multiplier / LOG_MULTIPLIER_UNIT, attention_factor.unwrap_or(0.1 * stretch + 1.0)),
    };
    let growth = rotated * (0.1 * log_multiplier * stretch + 1.0);
    Ok(scale * growth * growth)
}

fn temperature(metadata: &dyn Metadata) -> Result<Option<Temperature>, ConfigError> {
    let scale = metadata.number(TEMPERATURE)?.unwrap_or(0.0);
    if scale == 0.0 {
        return Ok(None);
    }
    let interval = metadata.needed_count(TEMPERATURE_LENGTH)?;
    Ok(Some(Temperature { scale, interval, offset: 0.0 }))
}

fn experts(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Option<ExpertsConfig>, ConfigError> {
    // Its class normalises weights, applies a sigmoid and has groups unless files say otherwise; that of V2 does not.
    let is_v3 = metadata::is_of_class(metadata, "DeepseekV3ForCausalLM")?;
    let mut experts = experts::read(metadata, config, is_v3)?;
    if let Some(experts) = &mut experts {
        // GLM-4.7 Flash's first files do not say it; they are recognised by their shape, as in llama.cpp.
        let is_glm = (47..=48).contains(&config.layers) && config.vocab == 154_880;
        experts.sigmoid |= is_glm && metadata.count(experts::GATING)?.unwrap_or(0) == 0;
        if metadata.is_hf() {
            experts.sigmoid = metadata.texts(SCORING)?.map_or(is_v3, |names| names == ["sigmoid"]);
            let grouped = metadata.texts(CHOICE)?.map_or(is_v3, |names| names != ["greedy"]);
            experts.groups = experts.groups.filter(|_| grouped);
        }
        // In files of both kinds, V2 is told from later models by its softmax.
        experts.ranked_by_best = experts.groups.is_some() && !experts.sigmoid;
    }
    Ok(experts)
}

fn with_bias(shape: FeedForwardShape) -> FeedForwardShape {
    match shape {
        FeedForwardShape::Experts(experts) => {
            FeedForwardShape::Experts(ExpertsShape { selection_bias: Presence::Optional, ..experts })
        }
        dense => dense,
    }
}
