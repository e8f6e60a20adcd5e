//! The sensitivity of a model to the format of one layer's keys or values.

use std::io;

use kvik_kernels::{KvFormat, KvFormats, KvLayout};
use kvik_model::{KvMap, ModelConfig, ModelRunner};

use super::FORMATS;
use super::divergence::{Divergence, measure};
use crate::engine::perplexity::Windows;

/// Mean divergence of the predictions, in nats, with one layer's keys or values in a format and all others in f32.
#[derive(Debug, Clone, PartialEq)]
pub struct Sensitivity {
    /// Number of positions that the means are over.
    pub positions: usize,
    /// With the keys of a layer in one of [`FORMATS`], `[layers]`; 0 for layers that store none of their own.
    pub keys: Vec<[f64; FORMATS.len()]>,
    /// With the values of a layer in one of them, `[layers]`.
    pub values: Vec<[f64; FORMATS.len()]>,
}

/// The keys or the values of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KvPart {
    Keys,
    Values,
}

impl Sensitivity {
    /// Measures a model on `windows`, as [`measure`] does; `progress` is called [`Sensitivity::computations`] times.
    ///
    /// # Errors
    /// When there is no memory for KV blocks.
    pub fn measure(
        runner: &mut ModelRunner,
        windows: &Windows,
        progress: &mut dyn FnMut(),
    ) -> io::Result<Sensitivity> {
        let layouts = layouts(runner.model().config());
        let found = measure(runner, windows, &layouts, progress)?;
        let positions = found.first().map_or(0, Divergence::positions);
        let means: Vec<f64> = found.iter().map(Divergence::mean).collect();
        let (by_part, _) = means.as_chunks();
        let (keys, values) = by_part.split_at(by_part.len() / 2);
        let config = runner.model().config();
        let [keys, values] = [keys, values].map(|means| of_all_layers(config, means));
        Ok(Sensitivity { positions, keys, values })
    }

    /// Number of computations of a window that measuring a model takes.
    pub fn computations(config: &ModelConfig) -> usize {
        1 + 2 * config.kv_layers().count() * FORMATS.len()
    }
}

/// The means of all layers, of those of the layers that store keys and values.
fn of_all_layers(config: &ModelConfig, stored: &[[f64; FORMATS.len()]]) -> Vec<[f64; FORMATS.len()]> {
    let mut means = vec![[0.0; FORMATS.len()]; config.layers];
    config.kv_layers().zip(stored).for_each(|(layer, mean)| means[layer] = *mean);
    means
}

/// For keys, then values: for each layer that stores them: for each format: all parts exact except that one.
fn layouts(config: &ModelConfig) -> Vec<KvLayout> {
    let mut layouts = Vec::new();
    for part in [KvPart::Keys, KvPart::Values] {
        for layer in config.kv_layers() {
            layouts.extend(FORMATS.map(|format| all_exact_but(config, layer, part, format)));
        }
    }
    layouts
}

fn all_exact_but(config: &ModelConfig, layer: usize, part: KvPart, format: KvFormat) -> KvLayout {
    let mut formats = vec![KvFormats::from(KvFormat::F32); config.layers];
    match part {
        KvPart::Keys => formats[layer].k = format,
        KvPart::Values => formats[layer].v = format,
    }
    ModelRunner::layout(config, &KvMap::by_layer(formats)).expect("the map has the layers of the model")
}
