//! By observed attention: the positions to which a window of rows at the end attends, smoothed over neighbours
//! (SnapKV, arXiv 2404.14469). The window itself is retained.

use super::rules::{Fault, OptionValue, Rules, Scene, by_head, options, require};
use crate::retain::facts::window;
use crate::retain::facts::{HeadFacts, LayerFacts, Reduce, Watch, WatchedRows};
use crate::retain::state::LayerState;

/// The published length of the window.
const ROWS: usize = 64;
/// The text of [`WindowRows::Auto`].
const AUTO: &str = "auto";

/// Length of the window that [`Snapkv`] observes and retains, at most half of the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowRows {
    /// 64 rows, or half of what is retained beside the first positions if that is less.
    Auto,
    /// This many rows, as far as what is retained has room for them.
    Rows(usize),
}

impl WindowRows {
    fn max(self) -> usize {
        match self {
            WindowRows::Auto => ROWS,
            WindowRows::Rows(rows) => rows,
        }
    }
}

impl OptionValue for WindowRows {
    fn read(&mut self, text: &str) -> Result<(), String> {
        *self = match text {
            AUTO => WindowRows::Auto,
            _ => WindowRows::Rows(text.parse().map_err(|_| format!("a whole number or {AUTO}"))?),
        };
        Ok(())
    }

    fn text(&self) -> String {
        match self {
            WindowRows::Auto => AUTO.to_owned(),
            WindowRows::Rows(rows) => rows.to_string(),
        }
    }
}

options! {
    /// Retains the positions to which the last rows attend, with their neighbours (SnapKV).
    Snapkv {
        /// Rows that are observed. Their positions are retained.
        window: WindowRows = WindowRows::Auto,
        /// Size of the neighbourhood over which attention is averaged: odd, 1 for none.
        pool: usize = 5,
    }
}

impl Rules for Snapkv {
    fn watch(&self, _: usize) -> Watch {
        Watch::Attention { rows: WatchedRows::Last(self.window.max()), reduce: Reduce::Sum }
    }

    fn recent(&self, at: usize) -> usize {
        window(self.window.max(), at)
    }

    fn window_shrinks(&self) -> bool {
        self.window == WindowRows::Auto
    }

    fn scores(&self, scene: Scene, layer: &LayerFacts, _: &mut LayerState) -> Vec<Vec<f32>> {
        by_head(layer, |head| pooled_before(head, scene.at - scene.rows, self.pool))
    }

    fn fault(&self) -> Option<Fault> {
        require(self.window.max() > 0, "window", self.window.text(), "at least 1").or(require(
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
