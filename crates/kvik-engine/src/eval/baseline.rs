//! Random KV maps as a baseline for a choice: one format for all layers, except some random layers in f16.

use kvik_kernels::{KvFormat, KvFormats};

use kvik_model::{KvMap, ModelConfig};

/// A map with `base` in all layers but `exact` ones, which are drawn by `seed` and stored in f16.
///
/// # Panics
/// When the model has fewer layers than `exact`.
pub fn with_layers_at_random(config: &ModelConfig, base: KvFormat, exact: usize, seed: u64) -> KvMap {
    let mut layers: Vec<usize> = (0..config.layers).collect();
    let mut state = seed;
    // The first steps of a Fisher-Yates shuffle.
    for i in 0..exact {
        let among = (layers.len() - i) as u64;
        layers.swap(i, i + (random(&mut state) % among) as usize);
    }
    let mut formats = vec![KvFormats::from(base); config.layers];
    layers[..exact].iter().for_each(|&layer| formats[layer] = KvFormat::F16.into());
    KvMap::by_layer(formats)
}

/// SplitMix64 (Steele, Lea, Flood 2014).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use kvik_model::load::LoadedModel;
    use kvik_text::files::bytes::FileBytes;

    #[test]
    fn as_many_layers_as_asked_are_exact_and_every_choice_of_them_is_drawn() {
        let bytes = FileBytes::Static(include_bytes!("../../../../models/tiny/kvik-tiny-q8_0.gguf"));
        let config = LoadedModel::from_bytes(bytes).unwrap().config;
        for exact in 0..=config.layers {
            let mut drawn = BTreeSet::new();
            for seed in 0..200 {
                let map = with_layers_at_random(&config, KvFormat::Q4, exact, seed);
                assert_eq!(map, with_layers_at_random(&config, KvFormat::Q4, exact, seed));
                let layers = map.layers(config.layers).unwrap();
                assert_eq!(layers.iter().filter(|formats| formats.k == KvFormat::F16).count(), exact);
                assert!(layers.iter().all(|formats| formats.k == formats.v));
                drawn.insert(map.to_string());
            }
            assert_eq!(drawn.len(), [1, 6, 15, 20, 15, 6, 1][exact]);
        }
    }
}
