//! By observed attention: that of the last row, mean over all heads of the layer (TOVA, arXiv 2401.06104).

use super::rules::{Rules, Scene, by_head, options};
use crate::retain::facts::{LayerFacts, Reduce, Watch, WatchedRows};
use crate::retain::state::LayerState;

options! {
    /// Retains the positions to which the last row attends (TOVA).
    Tova {}
}

impl Rules for Tova {
    fn watch(&self, _: usize) -> Watch {
        Watch::Attention { rows: WatchedRows::Last(1), reduce: Reduce::Sum }
    }

    fn recent(&self, _: usize) -> usize {
        1
    }

    fn scores(&self, scene: Scene, layer: &LayerFacts, _: &mut LayerState) -> Vec<Vec<f32>> {
        // Heads may store different positions: the mean is over the heads that store a position.
        let mut means = vec![(0.0_f32, 0.0_f32); scene.at];
        for head in &layer.heads {
            for (&position, &mass) in head.positions.iter().zip(&head.mass) {
                let (sum, heads) = &mut means[position as usize];
                (*sum, *heads) = (*sum + mass, *heads + 1.0);
            }
        }
        means.iter_mut().for_each(|(sum, heads)| *sum /= *heads);
        by_head(layer, |head| head.positions.iter().map(|&position| means[position as usize].0).collect())
    }
}
