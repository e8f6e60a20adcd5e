//! Reads which layers have a sliding window.

use super::metadata::{Key, Metadata};
use crate::{ConfigError, ModelConfig, Window};

pub(super) use super::metadata::WINDOWED_THETA as THETA;

const POSITIONS: Key = Key::new("attention.sliding_window", &["sliding_window"]);
/// The layers with a window, `[layers]`; or a number `n`: all except every `n`th.
pub(super) const PATTERN: Key =
    Key::new("attention.sliding_window_pattern", &["sliding_window_pattern", "_sliding_window_pattern"]);
pub(super) const LAYER_TYPES: Key = Key::hf(&["layer_types", "layers_block_type"]);
/// The types of layers with a window.
const WINDOWED: [&str; 2] = ["sliding_attention", "chunked_attention"];
/// The default RoPE base of windowed layers in Gemma 3 and later.
pub(super) const THETA_DEFAULT: f32 = 10_000.0;

/// The windows of a file, which must have some.
pub(super) fn read_needed(
    metadata: &dyn Metadata,
    config: &ModelConfig,
    interval: usize,
) -> Result<Window, ConfigError> {
    let positions = metadata.count(POSITIONS)?;
    let missing = || {
        let found = positions.map_or("missing".to_owned(), |positions| positions.to_string());
        ConfigError::new(&metadata.name(POSITIONS), found, "a count of positions")
    };
    read(metadata, config, interval)?.ok_or_else(missing)
}

/// The windows of a file; `None` if it has none. If it does not list the layers, all except every `interval`th have
/// one. They rotate as the others do, except for a base of their own if the file has one.
pub(super) fn read(
    metadata: &dyn Metadata,
    config: &ModelConfig,
    interval: usize,
) -> Result<Option<Window>, ConfigError> {
    read_or(metadata, config, interval, None)
}

/// As [`read`], with a default for the number of positions.
pub(super) fn read_or(
    metadata: &dyn Metadata,
    config: &ModelConfig,
    interval: usize,
    positions: Option<usize>,
) -> Result<Option<Window>, ConfigError> {
    let positions = metadata.count(POSITIONS)?.or(positions).filter(|&positions| positions > 0);
    let Some(positions) = positions else { return Ok(None) };
    let mut rope = config.rope.clone();
    rope.theta = metadata.number(THETA)?.unwrap_or(rope.theta);
    let layers = layers(metadata, config.layers, interval)?;
    let (divided, head_dim) = (true, config.head_dim);
    Ok(Some(Window { positions, chunked: false, layers, rope, divided, head_dim }))
}

fn layers(metadata: &dyn Metadata, layers: usize, interval: usize) -> Result<Vec<bool>, ConfigError> {
    let listed = match metadata.texts(LAYER_TYPES)? {
        Some(types) => {
            Some((LAYER_TYPES, types.iter().map(|name| WINDOWED.contains(&name.as_str())).collect()))
        }
        None => metadata.flags(PATTERN)?.map(|windowed| (PATTERN, windowed)),
    };
    match listed {
        // Files may list additional layers, which predict tokens beyond the next one.
        Some((key, windowed)) if windowed.len() < layers => {
            let expected = format!("a value for each of {layers} layers");
            Err(ConfigError::new(&metadata.name(key), format!("{} values", windowed.len()), expected))
        }
        Some((_, mut windowed)) => {
            windowed.truncate(layers);
            Ok(windowed)
        }
        None => {
            let interval = metadata.count(PATTERN)?.unwrap_or(interval);
            Ok((0..layers).map(|layer| interval == 0 || layer % interval < interval - 1).collect())
        }
    }
}
