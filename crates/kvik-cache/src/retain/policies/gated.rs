//! By trained gates: each KV head has weights that predict from a position's key and value what KVzip would score it, so
//! the model does not repeat its context (the question of Fast KVzip, arXiv 2601.17668, and KVzap, arXiv 2601.07891,
//! which predict it from hidden states).

use super::rules::{Rules, Scene, by_head, options};
use crate::retain::amounts::Budget;
use crate::retain::facts::{LayerFacts, Needs};
use crate::retain::state::LayerState;

options! {
    /// Retains the positions that the model's gates score highest.
    Gated {}
}

impl Rules for Gated {
    fn needs(&self) -> Needs {
        Needs { gated: true, ..Needs::default() }
    }

    fn budget(&self) -> Budget {
        Budget::All
    }

    fn scores(&self, _: Scene, layer: &LayerFacts, _: &mut LayerState) -> Vec<Vec<f32>> {
        by_head(layer, |head| head.gated.clone())
    }
}
