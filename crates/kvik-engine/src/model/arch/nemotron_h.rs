//! Nemotron-H: each layer is one half: Mamba 2, attention that does not rotate, or a feed-forward layer without a gate.

use kvik_kernels::Activation;

use super::metadata::{Key, Metadata};
use super::{Architecture, LayerShape, MixingShape, Norms, Presence, recurrence};
use crate::model::feed_forward::{DenseShape, FeedForwardShape};
use crate::model::{ConfigError, Extras, ModelConfig, RopeStyle};

/// Widths of feed-forward layers, `[layers]`; 0 where a layer is another half.
const D_FF: Key = Key::gguf("feed_forward_length");

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "nemotron_h",
    hf_names: &[],
    hf_modules: &[],
    gguf_rope: RopeStyle::HalfSplit,
    extras,
    layer: |config, index| layer(config, index, dense(config)),
};

pub(super) fn extras(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    let alone = recurrence::by_layer(metadata, D_FF, config.layers)?;
    let alone = alone.unwrap_or_else(|| vec![false; config.layers]);
    let without_kv = recurrence::without_kv(metadata, config)?;
    let recurrent = without_kv.iter().zip(&alone).map(|(&without_kv, &alone)| without_kv && !alone);
    let attending = without_kv.iter().zip(&alone).any(|(&without_kv, &alone)| !without_kv && !alone);
    if !attending {
        return Err(recurrence::without_attention(metadata, D_FF));
    }
    let recurrence = recurrence::with_matrices(metadata, recurrent.collect())?;
    Ok(Extras {
        recurrence: Some(crate::model::Recurrence { feed_forward_alone: alone, ..recurrence }),
        unrotated: vec![true; config.layers],
        ..Extras::default()
    })
}

/// A layer that is one half; `feed_forward` where it is that.
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
