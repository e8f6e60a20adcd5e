//! By values: the largest norms, which can contribute most to the attention output.

use super::rules::{Rules, Scene, by_head, options};
use crate::retain::facts::{LayerFacts, Needs};
use crate::retain::state::LayerState;

options! {
    /// Retains the values of the largest norm.
    Vnorm {}
}

impl Rules for Vnorm {
    fn needs(&self) -> Needs {
        Needs { value_norms: true, ..Needs::default() }
    }

    fn scores(&self, _: Scene, layer: &LayerFacts, _: &mut LayerState) -> Vec<Vec<f32>> {
        by_head(layer, |head| head.value_norms.clone())
    }
}
