//! Positions at random, the same at every point: what every other policy has to beat.

use super::rules::{Rules, Scene, options};
use crate::retain::facts::LayerFacts;
use crate::retain::state::LayerState;

options! {
    /// Positions at random.
    Random {
        /// Another seed keeps other positions.
        seed: u64 = 0,
    }
}

impl Rules for Random {
    fn scores(&self, scene: Scene, layer: &LayerFacts, _: &mut LayerState) -> Vec<Vec<f32>> {
        let heads = layer.heads.iter().enumerate();
        let stream = |head: usize| mixed(mixed(mixed(self.seed) ^ scene.layer as u64) ^ head as u64);
        let score = |stream: u64, position: u32| (mixed(stream ^ u64::from(position)) >> 40) as f32;
        heads
            .map(|(index, head)| {
                head.positions.iter().map(|&position| score(stream(index), position)).collect()
            })
            .collect()
    }
}

/// A bijection of 64 bits that looks like chance (the finaliser of SplitMix64).
fn mixed(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
