//! By reconstruction: the model's attention while it repeats the sequence after its end (KVzip, arXiv 2505.23416).
//! Independent of the question, so it suits all, at the cost of about one more prefill.

use super::rules::{Rules, Scene, by_head, options};
use crate::retain::amounts::Budget;
use crate::retain::facts::{LayerFacts, Needs, Watch};
use crate::retain::state::LayerState;

options! {
    /// Retains the positions to which the model attends while it repeats the sequence (KVzip).
    Kvzip {
        /// Whether attention is multiplied by the norm of the position's value.
        vnorm: bool = false,
        /// Whether the values of retained positions change, so that attention to them gives what attention to all gave
        /// during the repetition (Attention Matching, arXiv 2602.16284).
        fit: bool = true,
    }
}

impl Rules for Kvzip {
    fn watch(&self, _: usize) -> Watch {
        Watch::Repeat
    }

    fn needs(&self) -> Needs {
        Needs { value_norms: self.vnorm, ..Needs::default() }
    }

    fn fits(&self) -> bool {
        self.fit
    }

    fn budget(&self) -> Budget {
        Budget::All
    }

    fn scores(&self, _: Scene, layer: &LayerFacts, _: &mut LayerState) -> Vec<Vec<f32>> {
        by_head(layer, |head| match self.vnorm {
            true => head.mass.iter().zip(&head.value_norms).map(|(mass, norm)| mass * norm).collect(),
            false => head.mass.clone(),
        })
    }
}
