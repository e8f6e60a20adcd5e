//! By observed attention, within windows: the sequence is divided into windows of equal length, and the most
//! important positions of each are retained. So no passage is dropped as a whole.

use super::h2o::mean_mass;
use super::rules::{Fault, Rules, Scene, by_head, options, require};
use crate::retain::facts::{HeadFacts, LayerFacts, Reduce, Watch, WatchedRows};
use crate::retain::rank;
use crate::retain::state::LayerState;

options! {
    /// Retains the most attended positions within each window of the sequence.
    Windowed {
        /// Positions per window.
        size: usize = 128,
    }
}

impl Rules for Windowed {
    fn watch(&self, _: usize) -> Watch {
        Watch::Attention { rows: WatchedRows::All, reduce: Reduce::Sum }
    }

    fn accumulates(&self) -> bool {
        true
    }

    fn scores(&self, scene: Scene, layer: &LayerFacts, _: &mut LayerState) -> Vec<Vec<f32>> {
        by_head(layer, |head| places(head, scene.at, self.size))
    }

    fn fault(&self) -> Option<Fault> {
        require(self.size > 0, "size", self.size, "at least 1")
    }
}

/// The rank of each position in its window, as a score: 0 for the first, -1 for the second.
fn places(head: &HeadFacts, at: usize, size: usize) -> Vec<f32> {
    let importance = mean_mass(head, at);
    let mut places = vec![0.0; importance.len()];
    let mut ranks = Vec::with_capacity(size.min(importance.len()));
    let mut start = 0;
    for window in head.positions.chunk_by(|&a, &b| a as usize / size == b as usize / size) {
        ranks.clear();
        ranks.extend(
            (0..).zip(&importance[start..][..window.len()]).map(|(index, &of)| rank::scored(of, index)),
        );
        ranks.sort_unstable();
        for (place, &rank) in ranks.iter().rev().enumerate() {
            places[start + rank::position(rank)] = -(place as f32);
        }
        start += window.len();
    }
    places
}
