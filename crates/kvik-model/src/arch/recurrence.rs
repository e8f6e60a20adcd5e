//! Reads the settings of recurrent layers.

use kvik_kernels::ConvWeights;

use super::metadata::{Key, Metadata};
use super::windows::LAYER_TYPES;
use super::{LayerShape, MixingShape};
use crate::recurrent::{GatedDeltaShape, MambaShape, RecurrentShape};
use crate::{ConfigError, ModelConfig, Recurrence, StateMatrices};

/// Key and value heads of each layer; 0 where a layer has no attention.
const KV_HEADS: Key = Key::gguf("attention.head_count_kv");
/// The recurrent layers, `[layers]`.
const RECURRENT: Key = Key::gguf("attention.recurrent_layers");
/// Interval of the layers with attention; the others are recurrent.
const INTERVAL: Key = Key::new("full_attention_interval", &["full_attention_interval"]);
/// The indices of layers with attention.
const ATTENDING: Key = Key::hf(&["attn_layer_indices", "full_attn_idxs"]);
const CONV_WIDTH: Key =
    Key::new("ssm.conv_kernel", &["linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel"]);
const INNER: Key = Key::gguf("ssm.inner_size");
/// Values of a head; and the ratio of the values of all heads to the width of the stream.
const HEAD_VALUES: Key = Key::hf(&["linear_value_head_dim", "mamba_head_dim", "mamba_d_head"]);
const EXPANSION: Key = Key::hf(&["mamba_expand"]);
const STATE: Key = Key::new("ssm.state_size", &["linear_key_head_dim", "mamba_d_state", "ssm_state_size"]);
const HEADS: Key =
    Key::new("ssm.time_step_rank", &["linear_num_value_heads", "mamba_n_heads", "mamba_num_heads"]);
const GROUPS: Key = Key::new("ssm.group_count", &["linear_num_key_heads", "mamba_n_groups", "n_groups"]);

/// Maximum number of values, of heads, and of dimensions of a key.
const INNER_MAX: usize = 1 << 20;
const HEADS_MAX: usize = 1 << 16;
const KEY_DIM_MAX: usize = 1 << 12;

/// The layers without key and value heads; all have some if the file has one number for all.
pub(super) fn without_kv(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Vec<bool>, ConfigError> {
    if let Some(recurrent) = typed(metadata, config.layers)? {
        return Ok(recurrent);
    }
    match by_layer(metadata, KV_HEADS, config.layers)? {
        Some(attending) => with_attention(metadata, KV_HEADS, attending.into_iter().map(|x| !x).collect()),
        None => Ok(vec![false; config.layers]),
    }
}

/// The layers that a checkpoint lists as other than attention, or whose indices are not among those of attention.
fn typed(metadata: &dyn Metadata, layers: usize) -> Result<Option<Vec<bool>>, ConfigError> {
    if let Some(types) = metadata.texts(LAYER_TYPES)? {
        let recurrent =
            types.iter().map(|name| is_recurrent(metadata, name)).collect::<Result<Vec<_>, _>>()?;
        let recurrent = for_each(metadata, LAYER_TYPES, recurrent, layers)?;
        return with_attention(metadata, LAYER_TYPES, recurrent).map(Some);
    }
    let Some(attending) = metadata.counts(ATTENDING)? else { return Ok(None) };
    let recurrent = (0..layers).map(|layer| !attending.contains(&layer)).collect();
    with_attention(metadata, ATTENDING, recurrent).map(Some)
}

/// Whether layers of this type are recurrent; an error for types of other models.
fn is_recurrent(metadata: &dyn Metadata, name: &str) -> Result<bool, ConfigError> {
    match name {
        "attention" | "full_attention" => Ok(false),
        "linear_attention" | "mamba" | "conv" => Ok(true),
        _ => {
            let expected = "attention, full_attention, linear_attention, mamba or conv";
            Err(ConfigError::new(&metadata.name(LAYER_TYPES), name, expected))
        }
    }
}

/// The layers that the file lists as recurrent; by default all except every `n`th.
pub(super) fn listed(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Vec<bool>, ConfigError> {
    if let Some(recurrent) = typed(metadata, config.layers)? {
        return Ok(recurrent);
    }
    if let Some(recurrent) = by_layer(metadata, RECURRENT, config.layers)? {
        return with_attention(metadata, RECURRENT, recurrent);
    }
    let said = metadata.count(INTERVAL)?;
    let key = if metadata.is_hf() && said.is_none() { LAYER_TYPES } else { INTERVAL };
    let interval = said.unwrap_or(4);
    if interval == 0 {
        return Err(ConfigError::new(&metadata.name(INTERVAL), interval, "at least 1"));
    }
    with_attention(metadata, key, (1..=config.layers).map(|layer| !layer.is_multiple_of(interval)).collect())
}

/// Rejects models whose layers, read from `key`, are all recurrent: sequences are accounted in blocks of keys and
/// values.
fn with_attention(metadata: &dyn Metadata, key: Key, recurrent: Vec<bool>) -> Result<Vec<bool>, ConfigError> {
    match recurrent.iter().all(|&recurrent| recurrent) {
        true => Err(without_attention(metadata, key)),
        false => Ok(recurrent),
    }
}

/// The error for a model without attention, according to `key`.
pub(super) fn without_attention(metadata: &dyn Metadata, key: Key) -> ConfigError {
    let found = "that of a model without attention";
    ConfigError::new(&metadata.name(key), found, "at least one layer with attention")
}

/// A value for each layer, if the file has an array; additional values are of layers that are not computed.
pub(super) fn by_layer(
    metadata: &dyn Metadata,
    key: Key,
    layers: usize,
) -> Result<Option<Vec<bool>>, ConfigError> {
    metadata.flags(key)?.map(|values| for_each(metadata, key, values, layers)).transpose()
}

/// The first `layers` values of `key`.
pub(super) fn for_each<T>(
    metadata: &dyn Metadata,
    key: Key,
    mut values: Vec<T>,
    layers: usize,
) -> Result<Vec<T>, ConfigError> {
    if values.len() < layers {
        let expected = format!("a value for each of {layers} layers");
        return Err(ConfigError::new(&metadata.name(key), format!("{} values", values.len()), expected));
    }
    values.truncate(layers);
    Ok(values)
}

/// A recurrence of these layers with a convolution only, whose width is at `key`.
pub(super) fn convolution(
    metadata: &dyn Metadata,
    layers: Vec<bool>,
    key: Key,
) -> Result<Recurrence, ConfigError> {
    let conv_width = within(metadata, key, ConvWeights::WIDTH_MAX)?;
    Ok(Recurrence { layers, feed_forward_alone: Vec::new(), conv_width, matrices: None })
}

/// A recurrence of these layers with state matrices.
pub(super) fn with_matrices(
    metadata: &dyn Metadata,
    config: &ModelConfig,
    layers: Vec<bool>,
) -> Result<Recurrence, ConfigError> {
    let heads = within(metadata, HEADS, HEADS_MAX)?;
    let inner = inner(metadata, config, heads)?;
    let key_heads = within(metadata, GROUPS, HEADS_MAX)?;
    let key_dim = within(metadata, STATE, KEY_DIM_MAX)?;
    divides(metadata, HEADS, heads, inner)?;
    divides(metadata, GROUPS, key_heads, heads)?;
    let matrices = Some(StateMatrices { inner, heads, key_heads, key_dim, grouped: metadata.is_hf() });
    Ok(Recurrence { matrices, ..convolution(metadata, layers, CONV_WIDTH)? })
}

/// Values of all heads. Checkpoints store those of one head, or their ratio to the width of the stream.
fn inner(metadata: &dyn Metadata, config: &ModelConfig, heads: usize) -> Result<usize, ConfigError> {
    if !metadata.is_hf() {
        return within(metadata, INNER, INNER_MAX);
    }
    let derived = matches!(metadata.texts(HEAD_VALUES), Ok(Some(text)) if text == ["auto"]);
    let (key, inner) = match metadata.count(EXPANSION)?.filter(|_| derived) {
        Some(expansion) => (EXPANSION, config.d_model.saturating_mul(expansion)),
        None => (HEAD_VALUES, heads.saturating_mul(metadata.needed_count(HEAD_VALUES)?)),
    };
    match (1..=INNER_MAX).contains(&inner) {
        true => Ok(inner),
        false => {
            let expected = format!("1 to {INNER_MAX} values of all heads");
            Err(ConfigError::new(&metadata.name(key), inner, expected))
        }
    }
}

/// As [`with_matrices`], with keys as long as values.
pub(super) fn with_square_matrices(
    metadata: &dyn Metadata,
    config: &ModelConfig,
    layers: Vec<bool>,
) -> Result<Recurrence, ConfigError> {
    let recurrence = with_matrices(metadata, config, layers)?;
    if let Some(StateMatrices { inner, heads, key_dim, .. }) = recurrence.matrices
        && inner != heads * key_dim
    {
        let expected = format!("{heads} heads of {key_dim}");
        let key = if metadata.is_hf() { HEAD_VALUES } else { INNER };
        return Err(ConfigError::new(&metadata.name(key), inner, expected));
    }
    Ok(recurrence)
}

fn within(metadata: &dyn Metadata, key: Key, most: usize) -> Result<usize, ConfigError> {
    match metadata.needed_count(key)? {
        count if (1..=most).contains(&count) => Ok(count),
        count => Err(ConfigError::new(&metadata.name(key), count, format!("1 to {most}"))),
    }
}

fn divides(metadata: &dyn Metadata, key: Key, divisor: usize, of: usize) -> Result<(), ConfigError> {
    match of.is_multiple_of(divisor) {
        true => Ok(()),
        false => Err(ConfigError::new(&metadata.name(key), divisor, format!("a divisor of {of}"))),
    }
}

/// A layer of `shape` with its sequence mixing: `recurrent` if it is a recurrent layer.
pub(super) fn layer(
    config: &ModelConfig,
    index: usize,
    shape: LayerShape,
    recurrent: impl Fn(&Recurrence) -> RecurrentShape,
) -> LayerShape {
    match &config.extras.recurrence {
        Some(recurrence) if config.extras.is_recurrent(index) => {
            LayerShape { mixing: MixingShape::Recurrent(recurrent(recurrence)), ..shape }
        }
        _ => shape,
    }
}

/// The gated delta rule of a recurrence; `like` gives its projections and the sharing of its keys.
pub(super) fn gated_delta(recurrence: &Recurrence, like: GatedDeltaShape) -> RecurrentShape {
    let Some(StateMatrices { heads, key_heads, key_dim, .. }) = recurrence.matrices else {
        unreachable!("the architecture reads matrices")
    };
    let width = recurrence.conv_width;
    RecurrentShape::GatedDelta(GatedDeltaShape { width, heads, key_heads, dim: key_dim, ..like })
}

/// Mamba 2 of a recurrence.
pub(super) fn mamba(recurrence: &Recurrence) -> RecurrentShape {
    let Some(StateMatrices { inner, heads, key_heads, key_dim, .. }) = recurrence.matrices else {
        unreachable!("the architecture reads matrices")
    };
    RecurrentShape::Mamba(MambaShape {
        width: recurrence.conv_width,
        inner,
        heads,
        groups: key_heads,
        key_dim,
    })
}
