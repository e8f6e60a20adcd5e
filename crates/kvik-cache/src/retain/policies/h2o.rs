//! By observed attention: all of it since the beginning (H2O, arXiv 2306.14048).

use super::rules::{Fault, Rules, Scene, by_head, choice, options, require};
use crate::retain::facts::{HeadFacts, LayerFacts, Reduce, Watch, WatchedRows};
use crate::retain::sketch::Sketch;
use crate::retain::state::LayerState;

choice! {
    /// How attention is counted.
    Counter {
        /// One counter a stored position.
        Exact = "exact",
        /// A count-min sketch a KV head, which positions share: less space and an error.
        Sketch = "sketch",
    }
}

options! {
    /// What was attended to most since the beginning.
    H2o {
        /// Whether attention counts per row that could see the position; the paper has the plain sum, in which the
        /// first positions have the longest time to gather attention.
        mean: bool = true,
        /// How attention is counted.
        counter: Counter = Counter::Exact,
        /// Counters in each of the four rows of a sketch.
        width: usize = 2048,
        /// How much of what a sketch has counted still counts at the next point.
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
    /// What the sketches say after they have counted what was observed since the last point.
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

/// The mean weight of each position in the rows that could see it: its own and all later ones.
pub(super) fn mean_mass(head: &HeadFacts, at: usize) -> Vec<f32> {
    let mean = |(&mass, &position): (&f32, &u32)| mass / (at - position as usize) as f32;
    head.mass.iter().zip(&head.positions).map(mean).collect()
}

/// Divides each estimate by the rows that could see the position, which decay as what they counted does.
fn divide_by_rows(estimates: &mut [f32], positions: &[u32], points: &[usize], decay: f32) {
    // From the last interval between points to the first: what the rows after it weigh, and one row of it.
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
