//! By keys: their norms (arXiv 2406.11430). Keys of small norm attract attention in most models; in models that
//! normalise keys, large ones matter.

use super::rules::{Rules, Scene, by_head, choice, options};
use crate::retain::facts::{LayerFacts, Needs};
use crate::retain::state::LayerState;

choice! {
    /// Which norms are retained.
    NormOrder {
        /// The smallest, as published.
        Small = "small",
        /// The largest.
        Large = "large",
    }
}

options! {
    /// Retains the keys of the smallest norm, or of the largest.
    Knorm {
        /// Which norms are retained.
        order: NormOrder = NormOrder::Small,
    }
}

impl Rules for Knorm {
    fn needs(&self) -> Needs {
        Needs { key_norms: true, ..Needs::default() }
    }

    fn scores(&self, _: Scene, layer: &LayerFacts, _: &mut LayerState) -> Vec<Vec<f32>> {
        by_head(layer, |head| match self.order {
            NormOrder::Small => head.key_norms.iter().map(|norm| -norm).collect(),
            NormOrder::Large => head.key_norms.clone(),
        })
    }
}
