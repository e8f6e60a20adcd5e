//! By observed attention: positions that remained important throughout a window of history (Scissorhands, arXiv
//! 2305.17118). A row finds a position unimportant if it attends less to it than an even division would; those
//! found unimportant most often are dropped.

use super::rules::{Fault, Rules, Scene, by_head, options, require};
use crate::retain::facts::{LayerFacts, Reduce, Watch, WatchedRows};
use crate::retain::state::LayerState;

/// Latest positions that are forced, as published: too few rows have judged them.
const RECENT: usize = 10;

options! {
    /// Retains the positions that few rows of a window found unimportant (Scissorhands).
    Scissorhands {
        /// Rows that are observed, at most half of the sequence.
        window: usize = 256,
    }
}

impl Rules for Scissorhands {
    fn watch(&self, _: usize) -> Watch {
        Watch::Attention { rows: WatchedRows::Last(self.window), reduce: Reduce::Above }
    }

    fn recent(&self, at: usize) -> usize {
        RECENT.min(at)
    }

    fn scores(&self, scene: Scene, layer: &LayerFacts, _: &mut LayerState) -> Vec<Vec<f32>> {
        let found =
            |(&above, &position): (&f32, &u32)| above - scene.rows.min(scene.at - position as usize) as f32;
        by_head(layer, |head| head.mass.iter().zip(&head.positions).map(found).collect())
    }

    fn fault(&self) -> Option<Fault> {
        require(self.window > 0, "window", self.window, "at least 1")
    }
}
