//! By observed attention, recent rows before older ones: the attention of a row counts less with every further row.

use super::rules::{Fault, Rules, Scene, by_head, options, require};
use crate::retain::facts::{LayerFacts, Reduce, Watch, WatchedRows};
use crate::retain::state::LayerState;

options! {
    /// Retains the most attended positions, recent rows counting more than older ones.
    Decay {
        /// Decay rate of a row's attention: a factor of 1/e in 1 / `lambda` rows.
        lambda: f32 = 0.01,
    }
}

impl Rules for Decay {
    fn watch(&self, _: usize) -> Watch {
        let row = (-f64::from(self.lambda)).exp() as f32;
        Watch::Attention { rows: WatchedRows::All, reduce: Reduce::Decayed(row) }
    }

    fn accumulates(&self) -> bool {
        true
    }

    fn scores(&self, _: Scene, layer: &LayerFacts, _: &mut LayerState) -> Vec<Vec<f32>> {
        by_head(layer, |head| head.mass.clone())
    }

    fn fault(&self) -> Option<Fault> {
        require(self.lambda >= 0.0 && self.lambda.is_finite(), "lambda", self.lambda, "at least 0")
    }
}
