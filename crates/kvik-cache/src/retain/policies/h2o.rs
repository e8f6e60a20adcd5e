//! By observed attention, accumulated since the beginning (H2O, arXiv 2306.14048).

use super::rules::{Fault, Rules, Scene, by_head, choice, options, require};
use crate::retain::facts::{HeadFacts, LayerFacts, Reduce, Watch, WatchedRows};
use crate::retain::sketch::Sketch;
use crate::retain::state::LayerState;

choice! {
    /// How attention is accumulated.
    Counter {
        /// A counter for each stored position.
        Exact = "exact",
        /// A count-min sketch for each KV head, whose counters positions share: less space, but approximate.
        Sketch = "sketch",
    }
}

options! {
    /// Retains the positions with the most accumulated attention since the beginning (H2O).
    H2o {
        /// Whether attention is averaged over the rows that can see the position; the paper uses the plain sum, in
        /// which the first positions have the longest time to accumulate attention.
        mean: bool = true,
        /// How attention is accumulated.
        counter: Counter = Counter::Exact,
        /// Counters in each of the four rows of a sketch.
        width: usize = 2048,
        /// Factor by which a sketch's counters decay at each point.
        decay: f32 = 1.0,
    }
}

impl Rules for H2o {
    fn watch(&self, _: usize) -> Watch {
        Watch::Attention { rows: WatchedRows::All, reduce: Reduce::Sum }
    }

    fn accumulates(&self) -> bool {
        self.counter == Counter::Exact
    }

    fn scores(&self, scene: Scene, layer: &LayerFacts, state: &mut LayerState) -> Vec<Vec<f32>> {
        match (self.counter, self.mean) {
            (Counter::Sketch, _) => self.estimates(scene.at, layer, state),
            (Counter::Exact, true) => by_head(layer, |head| mean_mass(head, scene.at)),
            (Counter::Exact, false) => by_head(layer, |head| head.mass.clone()),
        }
    }

    fn fault(&self) -> Option<Fault> {
        let decays = self.counter == Counter::Sketch || self.decay == 1.0;
        require((16..=1 << 14).contains(&self.width), "width", self.width, "between 16 and 16384")
            .or(require(self.decay > 0.0 && self.decay <= 1.0, "decay", self.decay, "above 0 and up to 1"))
            .or(require(
                decays,
                "decay",
                self.decay,
                "1: exact counters do not decay, the policy `decay` does",
            ))
    }
}

impl H2o {
    /// Adds the attention observed since the last point to the sketches, and returns their estimates.
    fn estimates(&self, at: usize, layer: &LayerFacts, state: &mut LayerState) -> Vec<Vec<f32>> {
        state.points.push(at);
        state.sketches.resize(layer.heads.len(), Sketch::new(self.width));
        let points = &state.points;
        let heads = layer.heads.iter().zip(&mut state.sketches);
        let estimates = heads.map(|(head, sketch)| {
            sketch.decay(self.decay);
            head.positions.iter().zip(&head.mass).for_each(|(&position, &mass)| sketch.add(position, mass));
            let mut estimates: Vec<f32> =
                head.positions.iter().map(|&position| sketch.estimate(position)).collect();
            if self.mean {
                divide_by_rows(&mut estimates, &head.positions, points, self.decay);
            }
            estimates
        });
        estimates.collect()
    }
}

/// The mean weight of each position over the rows that can see it: its own and all later ones.
pub(super) fn mean_mass(head: &HeadFacts, at: usize) -> Vec<f32> {
    let mean = |(&mass, &position): (&f32, &u32)| mass / (at - position as usize) as f32;
    head.mass.iter().zip(&head.positions).map(mean).collect()
}

/// Divides each estimate by the number of rows that can see the position, which decay as the counters do.
fn divide_by_rows(estimates: &mut [f32], positions: &[u32], points: &[usize], decay: f32) {
    // From the last interval between points to the first: the total weight of the later rows, and the weight of a
    // row of this interval.
    let (mut later, mut row) = (0.0, 1.0);
    let mut index = positions.len();
    for (interval, &end) in points.iter().enumerate().rev() {
        let start = if interval == 0 { 0 } else { points[interval - 1] };
        while index > 0 && positions[index - 1] as usize >= start {
            index -= 1;
            estimates[index] /= later + row * (end - positions[index] as usize) as f32;
        }
        later += row * (end - start) as f32;
        row *= decay;
    }
}
