//! Gates: for each KV head, weights that predict from a position's stored key and value how much the model would attend
//! to it while it repeats its context, which is the score of KVzip (arXiv 2505.23416).
//!
//! Fast KVzip (arXiv 2601.17668) and KVzap (arXiv 2601.07891) predict it from hidden states. Keys and values are what
//! is left of those in the cache: a gate that reads them works for cached prefixes too, for any division into batches, and
//! for positions that were computed before it was trained. A gate is linear, so training it is a regression.

mod ridge;

use std::ops::Range;

use kvik_cache::retain::HeadFacts;
use kvik_kernels::KvLayout;

use ridge::Equations;
pub use ridge::Fit;

/// Features beside the elements of key and value: logarithms of their norms, and the key's likeness to all others.
const FACTS: usize = 3;
/// Added to a target before its logarithm is taken: what is below it does not matter.
const TARGET_MIN: f32 = 1e-3;
/// Smallest norm whose logarithm is taken.
const NORM_MIN: f32 = 1e-9;
/// How much small weights are preferred; see [`Fit`].
const STRENGTH: f64 = 0.1;
/// Partial sums of a product, so that it is one loop over lanes.
const LANES: usize = 8;

/// The gates of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Gates {
    /// `[layers][kv_heads]`, of the layers that store keys and values.
    pub layers: Vec<Vec<HeadGate>>,
}

/// The gate of a KV head: the score of a position is the product of weights and features, and the bias.
pub type HeadGate = Fit;

/// Number of features of a position in each layer of a layout.
pub fn width(layout: &KvLayout, layer: usize) -> usize {
    let layer = layout.layers()[layer];
    layer.key_dim + layer.value_dim + FACTS
}

impl Gates {
    /// Whether there is a gate with finite weights for every KV head of a layout.
    pub fn fits(&self, layout: &KvLayout) -> bool {
        let fits = |(index, gates): (usize, &Vec<HeadGate>)| {
            gates.len() == layout.layers()[index].kv_heads
                && gates.iter().all(|gate| gate.weights.len() == width(layout, index) && gate.is_finite())
        };
        self.layers.len() == layout.layers().len() && self.layers.iter().enumerate().all(fits)
    }
}

impl HeadGate {
    /// The score of each row of `features`, `[n, width]`.
    pub(super) fn scores(&self, features: &[f32]) -> Vec<f32> {
        features.chunks_exact(self.weights.len()).map(|row| product(row, &self.weights) + self.bias).collect()
    }

    fn is_finite(&self) -> bool {
        self.bias.is_finite() && self.weights.iter().all(|weight| weight.is_finite())
    }
}

/// The product of two vectors of one length, in a fixed order of sums.
fn product(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

/// The features of positions, `[n, width]`, from their keys before rotation and their values, `[n, dim]` each, and
/// their norms and likeness.
pub(super) fn features([keys, values]: [&[f32]; 2], facts: &HeadFacts) -> Vec<f32> {
    let count = facts.likeness.len();
    if count == 0 {
        return Vec::new();
    }
    let rows = keys.chunks_exact(keys.len() / count).zip(values.chunks_exact(values.len() / count));
    let logarithm = |norm: f32| norm.max(NORM_MIN).ln();
    let mut out = Vec::with_capacity(keys.len() + values.len() + FACTS * count);
    for (index, (key, value)) in rows.enumerate() {
        out.extend_from_slice(key);
        out.extend_from_slice(value);
        out.extend([logarithm(facts.key_norms[index]), logarithm(facts.value_norms[index])]);
        out.push(facts.likeness[index]);
    }
    out
}

/// Samples from which the gates of a model are trained.
#[derive(Debug)]
pub struct GateSchool {
    /// `[layers][kv_heads]`
    heads: Vec<Vec<Equations>>,
    positions: usize,
}

impl GateSchool {
    /// No samples, for a model with this layout.
    pub fn new(layout: &KvLayout) -> GateSchool {
        let heads = |(index, layer): (usize, &kvik_kernels::KvLayer)| {
            vec![Equations::new(width(layout, index)); layer.kv_heads]
        };
        GateSchool { heads: layout.layers().iter().enumerate().map(heads).collect(), positions: 0 }
    }

    /// Adds positions `range` of a KV head: its `features`, `[n, width]`, and the largest attention that each position
    /// received while it was repeated, `[n]`; positions that received none may be missing at the end.
    pub fn add(
        &mut self,
        [layer, head]: [usize; 2],
        features: &[f32],
        attention: &[f32],
        range: Range<usize>,
    ) {
        let equations = &mut self.heads[layer][head];
        let rows = features.chunks_exact(equations.width()).enumerate();
        for (index, row) in rows.take(range.end).skip(range.start) {
            let attention = attention.get(index).copied().unwrap_or(0.0);
            equations.add(row, (attention + TARGET_MIN).ln());
        }
        if [layer, head] == [0, 0] {
            self.positions += range.len();
        }
    }

    /// Number of positions that were added.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// The gates that fit the samples best. `None` without samples, or if a sum is not finite.
    pub fn gates(&self) -> Option<Gates> {
        let layer = |heads: &Vec<Equations>| heads.iter().map(|head| head.solve(STRENGTH)).collect();
        Some(Gates { layers: self.heads.iter().map(layer).collect::<Option<_>>()? })
    }
}

#[cfg(test)]
mod tests {
    use kvik_kernels::{KvFormat, KvLayer};

    use super::*;

    fn layout() -> KvLayout {
        KvLayout::uniform(2, KvLayer::full(2, 8, KvFormat::F32, KvFormat::F32))
    }

    fn facts(count: usize) -> HeadFacts {
        let some =
            |from: usize| (0..count).map(|index| 1.0 + ((index + from) % 5) as f32).collect::<Vec<f32>>();
        HeadFacts { key_norms: some(0), value_norms: some(1), likeness: some(3), ..HeadFacts::default() }
    }

    #[test]
    fn features_are_key_value_norms_and_likeness() {
        let (keys, values): (Vec<f32>, Vec<f32>) = ((0..6).map(|x| x as f32).collect(), vec![9.0; 4]);
        let facts = HeadFacts { key_norms: vec![1.0, 0.0], ..facts(2) };
        let rows = features([&keys, &values], &facts);
        let second = [3.0, 4.0, 5.0, 9.0, 9.0, NORM_MIN.ln(), 3.0_f32.ln(), 5.0];
        assert_eq!(rows[8..], second);
        assert_eq!(rows[..5], [0.0, 1.0, 2.0, 9.0, 9.0]);
        assert!(features([&[], &[]], &HeadFacts::default()).is_empty());
    }

    #[test]
    fn a_school_learns_what_attention_follows() {
        let layout = layout();
        let mut school = GateSchool::new(&layout);
        assert_eq!(school.gates(), None, "nothing was taught");
        let count = 200;
        let numbers =
            |salt: usize| (0..count * 8).map(|i| ((i * 7919 + salt * 31) % 97) as f32 / 97.0).collect();
        let (keys, values): (Vec<f32>, Vec<f32>) = (numbers(1), numbers(2));
        let rows = features([&keys, &values], &facts(count));
        let attention: Vec<f32> = keys.chunks(8).map(|key| (key[3] - 2.0).exp()).collect();
        for layer in 0..2 {
            for head in 0..2 {
                school.add([layer, head], &rows, &attention, 4..count);
            }
        }
        let gates = school.gates().unwrap();
        assert_eq!(school.positions(), count - 4);
        assert!(gates.fits(&layout));
        let scores = gates.layers[1][0].scores(&rows);
        let order = |of: &[f32]| {
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by(|&a, &b| of[b].total_cmp(&of[a]));
            order
        };
        let best = &order(&attention)[..40];
        let found = order(&scores)[..50].iter().filter(|index| best.contains(index)).count();
        assert!(found >= 36, "{found} of 40");
    }

    #[test]
    fn gates_of_another_shape_or_with_numbers_that_are_none_do_not_fit() {
        let layout = layout();
        let gate = HeadGate { weights: vec![0.5; width(&layout, 0)], bias: 0.0 };
        let gates = Gates { layers: vec![vec![gate.clone(); 2]; 2] };
        assert!(gates.fits(&layout));
        let check = |change: &dyn Fn(&mut Gates)| {
            let mut wrong = gates.clone();
            change(&mut wrong);
            assert!(!wrong.fits(&layout), "{wrong:?}");
        };
        check(&|gates| gates.layers.truncate(1));
        check(&|gates| gates.layers[1].truncate(1));
        check(&|gates| gates.layers[0][1].weights.truncate(1));
        check(&|gates| gates.layers[0][1].weights[3] = f32::NAN);
        check(&|gates| gates.layers[1][0].bias = f32::INFINITY);
    }
}
