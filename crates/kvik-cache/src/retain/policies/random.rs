//! Random positions, the same at every point: the baseline that every other policy has to beat.

use super::rules::{Rules, Scene, options};
use crate::retain::facts::LayerFacts;
use crate::retain::mix::mixed;
use crate::retain::state::LayerState;

options! {
    /// Retains random positions: the baseline that every other policy has to beat.
    Random {
        /// Seed of the random choice.
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
