//! By position: the first positions and a window of the latest (StreamingLLM, arXiv 2309.17453).

use super::rules::{Rules, Scene, by_head, options};
use crate::retain::facts::LayerFacts;
use crate::retain::state::LayerState;

options! {
    /// Retains the first positions and the latest (StreamingLLM). [`crate::retain::Retention::sinks`] sets the number of first ones.
    Sinks {}
}

impl Rules for Sinks {
    fn every(&self) -> usize {
        64
    }

    fn scores(&self, _: Scene, layer: &LayerFacts, _: &mut LayerState) -> Vec<Vec<f32>> {
        by_head(layer, |head| head.positions.iter().map(|&position| position as f32).collect())
    }
}
