//! Llama 4 (text): chunks in three of four layers; the others see all positions, do not rotate, and multiply queries by
//! a factor of their position. Experts are weighed before they compute, beside a shared one, in every so many layers.

use super::metadata::{Key, Metadata};
use super::{Architecture, LayerShape, Presence, QkNorm, experts, windows};
use crate::model::feed_forward::{ExpertsShape, FeedForwardShape, Gating, Weighted};
use crate::model::{ConfigError, Extras, ModelConfig, RopeStyle, Temperature};

const CHUNK: usize = 8192;
const CHUNKED: Key = Key::gguf("attention.sliding_window");
const EXPERTS_INTERVAL: Key = Key::new("interleave_moe_layer_step", &["interleave_moe_layer_step"]);
/// Files in GGUF do not say whether queries and keys are normed: the models with so many experts do not.
const EXPERTS_WITHOUT_NORM: usize = 128;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "llama4",
    hf_names: &["Llama4ForCausalLM"],
    hf_modules: &[],
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
    let mut experts = experts::read(metadata, config, false)?;
    if let Some(experts) = &mut experts {
        experts.interval = metadata.needed_count(EXPERTS_INTERVAL)?.max(1);
        experts.shared_d_ff = experts.d_ff;
    }
    if metadata.count(CHUNKED)? == Some(0) {
        return Ok(Extras { experts, ..Extras::default() });
    }
    let mut window = windows::read_or(metadata, config, 4, Some(CHUNK))?;
    if let Some(window) = &mut window {
        (window.positions, window.chunked) = (CHUNK, true);
    }
    Ok(Extras {
        window,
        experts,
        temperature: Some(Temperature { scale: 0.1, interval: CHUNK, offset: 1.0 }),
        unrotated: (1..=config.layers).map(|layer| layer.is_multiple_of(4)).collect(),
        ..Extras::default()
    })
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
