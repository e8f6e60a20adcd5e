//! By predicted attention: the attention of future queries, from the moments of the observed ones (Expected
//! Attention, arXiv 2510.00636).

use super::rules::{Fault, Rules, Scene, by_head, options, require};
use crate::retain::facts::{LayerFacts, Needs, Watch};
use crate::retain::state::LayerState;

options! {
    /// Retains the positions to which queries like the observed ones would attend (Expected Attention).
    Expected {
        /// Added to the expected attention of each position: with a large one only the norm of its value counts.
        epsilon: f32 = 0.0,
        /// Whether attention is multiplied by the norm of the position's value.
        vnorm: bool = true,
    }
}

impl Rules for Expected {
    fn watch(&self, sinks: usize) -> Watch {
        Watch::Queries { skip: sinks }
    }

    fn needs(&self) -> Needs {
        Needs { expected: true, value_norms: self.vnorm, ..Needs::default() }
    }

    fn accumulates(&self) -> bool {
        true
    }

    fn scores(&self, _: Scene, layer: &LayerFacts, _: &mut LayerState) -> Vec<Vec<f32>> {
        by_head(layer, |head| match self.vnorm {
            true => {
                let worth = |(expected, norm): (&f32, &f32)| (expected + self.epsilon) * norm;
                head.expected.iter().zip(&head.value_norms).map(worth).collect()
            }
            false => head.expected.clone(),
        })
    }

    fn fault(&self) -> Option<Fault> {
        require(self.epsilon >= 0.0 && self.epsilon.is_finite(), "epsilon", self.epsilon, "at least 0")
    }
}
