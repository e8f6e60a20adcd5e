//! By representatives: the positions to which the last rows attend, less those redundant with other keys (R-KV,
//! arXiv 2505.24133). Designed for long reasoning, which repeats itself.

use super::rules::{Fault, Rules, Scene, by_head, options, require};
use crate::retain::facts::window;
use crate::retain::facts::{HeadFacts, LayerFacts, Needs, Reduce, Watch, WatchedRows};
use crate::retain::state::LayerState;

options! {
    /// Retains the positions to which the last rows attend, less those redundant with other keys (R-KV).
    Rkv {
        /// Rows that are observed, at most half of the sequence. Their positions are retained.
        window: usize = 8,
        /// Size of the neighbourhood whose maximum attention counts: odd, 1 for none.
        pool: usize = 7,
        /// The weight of importance; redundancy has the weight 1 - `lambda`.
        lambda: f32 = 0.1,
    }
}

impl Rules for Rkv {
    fn watch(&self, _: usize) -> Watch {
        Watch::Attention { rows: WatchedRows::Last(self.window), reduce: Reduce::Sum }
    }

    fn needs(&self) -> Needs {
        Needs { redundancy: true, ..Needs::default() }
    }

    fn recent(&self, at: usize) -> usize {
        window(self.window, at)
    }

    fn every(&self) -> usize {
        128
    }

    fn scores(&self, scene: Scene, layer: &LayerFacts, _: &mut LayerState) -> Vec<Vec<f32>> {
        let rows = scene.rows;
        by_head(layer, |head| {
            let importance = pooled(head, scene.at - rows, self.pool);
            let redundancy = softmax(&head.redundancy);
            let joined = |(mass, redundancy): (f32, f32)| {
                self.lambda * mass / rows as f32 - (1.0 - self.lambda) * redundancy
            };
            importance.into_iter().zip(redundancy).map(joined).collect()
        })
    }

    fn fault(&self) -> Option<Fault> {
        require(self.window > 0, "window", self.window, "at least 1")
            .or(require(self.pool % 2 == 1 && self.pool < 256, "pool", self.pool, "an odd number below 256"))
            .or(require((0.0..=1.0).contains(&self.lambda), "lambda", self.lambda, "from 0 to 1"))
    }
}

/// The mass of each position, for those before `end` the maximum over it and its `pool - 1` stored neighbours.
fn pooled(head: &HeadFacts, end: usize, pool: usize) -> Vec<f32> {
    let before = head.positions.partition_point(|&position| (position as usize) < end);
    let largest = |index: usize| {
        let neighbours = &head.mass[index.saturating_sub(pool / 2)..(index + pool / 2 + 1).min(before)];
        neighbours.iter().copied().fold(f32::NEG_INFINITY, f32::max)
    };
    (0..before).map(largest).chain(head.mass[before..].iter().copied()).collect()
}

fn softmax(values: &[f32]) -> Vec<f32> {
    let largest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = values.iter().map(|value| f64::from(value - largest).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|power| (power / sum) as f32).collect()
}
