//! By observed attention: the positions to which a window of rows at the end attends, smoothed over neighbours
//! (SnapKV, arXiv 2404.14469). The window itself is retained.

use super::rules::{Fault, Rules, Scene, by_head, options, require};
use crate::retain::facts::window;
use crate::retain::facts::{HeadFacts, LayerFacts, Reduce, Watch, WatchedRows};
use crate::retain::state::LayerState;

options! {
    /// Retains the positions to which the last rows attend, with their neighbours.
    Snapkv {
        /// Rows that are observed, at most half of the sequence. Their positions are retained.
        window: usize = 64,
        /// Size of the neighbourhood over which attention is averaged: odd, 1 for none.
        pool: usize = 5,
    }
}

impl Rules for Snapkv {
    fn watch(&self, _: usize) -> Watch {
        Watch::Attention { rows: WatchedRows::Last(self.window), reduce: Reduce::Sum }
    }

    fn recent(&self, at: usize) -> usize {
        window(self.window, at)
    }

    fn scores(&self, scene: Scene, layer: &LayerFacts, _: &mut LayerState) -> Vec<Vec<f32>> {
        let window = window(self.window, scene.at);
        by_head(layer, |head| pooled_before(head, scene.at - window, self.pool))
    }

    fn fault(&self) -> Option<Fault> {
        require(self.window > 0, "window", self.window, "at least 1").or(require(
            self.pool % 2 == 1 && self.pool < 256,
            "pool",
            self.pool,
            "an odd number below 256",
        ))
    }
}

/// The mass of each position, for those before `end` the mean over it and its `pool - 1` stored neighbours. Missing
/// neighbours at either end count as 0.
pub(super) fn pooled_before(head: &HeadFacts, end: usize, pool: usize) -> Vec<f32> {
    let before = head.positions.partition_point(|&position| (position as usize) < end);
    let half = pool / 2;
    let mean = |index: usize| {
        let neighbours = &head.mass[index.saturating_sub(half)..(index + half + 1).min(before)];
        neighbours.iter().sum::<f32>() / pool as f32
    };
    (0..before).map(mean).chain(head.mass[before..].iter().copied()).collect()
}
