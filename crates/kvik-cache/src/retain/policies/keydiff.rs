//! By keys: those least similar to the mean of all keys' directions (KeyDiff, arXiv 2504.15364).

use super::rules::{Rules, Scene, by_head, options};
use crate::retain::facts::{LayerFacts, Needs};
use crate::retain::state::LayerState;

options! {
    /// Retains the keys that are least similar to the mean key (KeyDiff).
    Keydiff {}
}

impl Rules for Keydiff {
    fn needs(&self) -> Needs {
        Needs { likeness: true, ..Needs::default() }
    }

    fn scores(&self, _: Scene, layer: &LayerFacts, _: &mut LayerState) -> Vec<Vec<f32>> {
        by_head(layer, |head| head.likeness.iter().map(|likeness| -likeness).collect())
    }
}
