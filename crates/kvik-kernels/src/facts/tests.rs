//! Statistics compared with f64, every variant compared with the specification, and moments for any division
//! of rows.

use std::ops::Range;

use proptest::prelude::*;

use super::expected::{HeadQueries, Keys, expected_with};
use super::rows::RowFacts;
use super::*;
use crate::ops::RopeStyle;
use crate::testing::Random;
use crate::{Isa, Pool};

fn vector(seed: u64, len: usize) -> Vec<f32> {
    let mut random = Random(seed);
    (0..len).map(|_| random.float()).collect()
}

/// Vectors of `dim`, contiguous in memory.
struct InMemory<'a> {
    x: &'a [f32],
    dim: usize,
}

impl Rows for InMemory<'_> {
    fn dim(&self) -> usize {
        self.dim
    }

    fn each(&self, range: Range<usize>, with: &mut dyn FnMut(&[f32])) {
        self.x[range.start * self.dim..range.end * self.dim].chunks(self.dim).for_each(with);
    }
}

/// Rows around a common vector, as keys are; some rows are zero.
fn keys(seed: u64, n: usize, dim: usize) -> Vec<f32> {
    let (mut random, common) = (Random(seed), vector(seed ^ 7, dim));
    let row = |_| {
        let zero = random.bits() % 16 == 0;
        common.iter().map(|c| if zero { 0.0 } else { c + random.float() }).collect::<Vec<f32>>()
    };
    (0..n).flat_map(row).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

/// Rows as f64, and their directions.
fn in_f64(x: &[f32], dim: usize) -> (Vec<Vec<f64>>, Vec<Vec<f64>>) {
    let rows: Vec<Vec<f64>> = x.chunks(dim).map(|row| row.iter().map(|&x| f64::from(x)).collect()).collect();
    let direction = |row: &Vec<f64>| {
        let norm = dot(row, row).sqrt();
        row.iter().map(|x| if norm > 0.0 { x / norm } else { 0.0 }).collect()
    };
    let directions = rows.iter().map(direction).collect();
    (rows, directions)
}

/// Norms and likeness by definition.
fn naive_rows(x: &[f32], dim: usize) -> [Vec<f64>; 2] {
    let (rows, directions) = in_f64(x, dim);
    let norms = rows.iter().map(|row| dot(row, row).sqrt()).collect();
    let mut mean = vec![0.0; dim];
    for direction in &directions {
        mean.iter_mut().zip(direction).for_each(|(mean, x)| *mean += x / directions.len() as f64);
    }
    let of_mean = dot(&mean, &mean).sqrt();
    let likeness = directions.iter().map(|direction| dot(direction, &mean) / of_mean.max(1e-12)).collect();
    [norms, likeness]
}

fn rows_of(isa: Isa, threads: usize, x: &[f32], dim: usize) -> [Vec<f32>; 2] {
    let pool = Pool::new(threads);
    let in_memory = InMemory { x, dim };
    let rows = RowFacts::new(isa, &pool, &in_memory);
    let mut facts = [(); 2].map(|()| vec![f32::NAN; x.len() / dim]);
    let [norms, likeness] = &mut facts;
    rows.norms(norms);
    rows.likeness(likeness);
    facts
}

fn dims() -> impl Strategy<Value = usize> {
    prop::sample::select(vec![8_usize, 24, 40, 64, 100, 128, 256])
}

proptest! {
    #![proptest_config(crate::testing::cases(48))]

    #[test]
    fn facts_of_rows_agree_with_their_definitions(dim in dims(), n in 0..400_usize, seed in any::<u64>()) {
        let x = keys(seed, n, dim);
        let found = rows_of(*Isa::available().last().unwrap(), 1, &x, dim);
        for (fact, (found, expect)) in found.iter().zip(naive_rows(&x, dim)).enumerate() {
            for (found, expect) in found.iter().zip(&expect) {
                let worst = (f64::from(*found) - expect).abs();
                prop_assert!(worst < 3e-6 * expect.abs().max(1.0), "fact {}: {} for {}", fact, found, expect);
            }
        }
        for isa in crate::testing::isas() {
            for (a, b) in rows_of(isa, 1, &x, dim).iter().zip(&found) {
                prop_assert_eq!(bits(a), bits(b), "{:?}", isa);
            }
        }
    }
}

#[test]
fn facts_of_many_rows_do_not_depend_on_threads() {
    let x = keys(3, 9000, 64);
    let alone = rows_of(Isa::current(), 1, &x, 64);
    for (a, b) in rows_of(Isa::current(), 3, &x, 64).iter().zip(&alone) {
        assert_eq!(bits(a), bits(b));
    }
}

/// Bits of all sums and moments.
fn moment_bits(moments: &QueryMoments) -> Vec<u32> {
    (0..moments.heads())
        .flat_map(|head| [moments.of(head).0, moments.of(head).1].map(bits).concat())
        .collect()
}

proptest! {
    #![proptest_config(crate::testing::cases(32))]

    #[test]
    fn moments_are_the_plain_sums_however_rows_come(
        dim in dims(),
        heads in 1..4_usize,
        n in 0..300_usize,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        seed in any::<u64>(),
    ) {
        let q = vector(seed, n * heads * dim);
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(n + 1)).chain([0, n]).collect();
        ends.sort_unstable();
        let mut scalar = QueryMoments::new(heads, dim);
        scalar.add_with(Isa::Scalar, &Pool::new(1), &q);
        prop_assert_eq!(scalar.count(), n);
        for isa in crate::testing::isas() {
            let mut in_pieces = QueryMoments::new(heads, dim);
            for ends in ends.windows(2) {
                in_pieces.add_with(isa, &Pool::new(2), &q[ends[0] * heads * dim..ends[1] * heads * dim]);
            }
            prop_assert_eq!(moment_bits(&in_pieces), moment_bits(&scalar), "{:?}", isa);
        }
        // The specified order: rows one by one, the stored columns of each row from its block of 16 on.
        for head in 0..heads {
            let (sums, half) = scalar.of(head);
            let rows: Vec<&[f32]> = q.chunks(dim).skip(head).step_by(heads).collect();
            let at = |row: &[f32], i: usize| row.get(i).copied().unwrap_or(0.0);
            let lanes = sums.len();
            let sum = (0..lanes).map(|i| rows.iter().fold(0.0, |sum, row| sum + at(row, i)));
            let kept = (0..lanes).flat_map(|i| (i / 16 * 16..lanes).map(move |j| (i, j)));
            let products = kept.map(|(i, j)| rows.iter().fold(0.0, |sum, row| at(row, i).mul_add(at(row, j), sum)));
            prop_assert_eq!(bits(sums), bits(&sum.collect::<Vec<_>>()));
            prop_assert_eq!(bits(half), bits(&products.collect::<Vec<_>>()));
        }
    }
}

/// Expected attention step by step in f64: mean and covariance, both rotated, logits, softmax, mean over heads.
fn naive_expected(
    q: &[f32],
    heads: usize,
    dim: usize,
    rotation: &[[f32; 2]],
    style: RopeStyle,
    keys: &[f32],
) -> Vec<f64> {
    let pairs = rotation.len();
    let pair = |i| if style == RopeStyle::HalfSplit { [i, i + pairs] } else { [2 * i, 2 * i + 1] };
    let rotate = |x: &mut dyn FnMut(usize) -> f64| -> Vec<f64> {
        let mut y: Vec<f64> = (0..dim).map(&mut *x).collect();
        for (i, [cos, sin]) in rotation.iter().map(|r| r.map(f64::from)).enumerate() {
            let [low, high] = pair(i);
            (y[low], y[high]) = (y[low] * cos - y[high] * sin, y[low] * sin + y[high] * cos);
        }
        y
    };
    let (keys, _) = in_f64(keys, dim);
    let mut out = vec![0.0; keys.len()];
    for head in 0..heads {
        let rows: Vec<&[f32]> = q.chunks(dim).skip(head).step_by(heads).collect();
        let mean_of =
            |f: &dyn Fn(&[f32]) -> f64| rows.iter().map(|row| f(row)).sum::<f64>() / rows.len() as f64;
        let mean: Vec<f64> = (0..dim).map(|i| mean_of(&|row| f64::from(row[i]))).collect();
        let covariance = |i: usize, j: usize| {
            mean_of(&|row| (f64::from(row[i]) - mean[i]) * (f64::from(row[j]) - mean[j]))
        };
        let covariance: Vec<Vec<f64>> =
            (0..dim).map(|i| (0..dim).map(|j| covariance(i, j)).collect()).collect();
        // Columns, then rows.
        let columns: Vec<Vec<f64>> = (0..dim).map(|j| rotate(&mut |i| covariance[i][j])).collect();
        let rotated: Vec<Vec<f64>> = (0..dim).map(|i| rotate(&mut |j| columns[j][i])).collect();
        let mean = rotate(&mut |i| mean[i]);
        let logit = |k: &Vec<f64>| {
            let spread: f64 = k.iter().zip(&rotated).map(|(x, row)| x * dot(row, k)).sum();
            dot(&mean, k) / (dim as f64).sqrt() + spread / (2.0 * dim as f64)
        };
        let logits: Vec<f64> = keys.iter().map(logit).collect();
        let m = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let l: f64 = logits.iter().map(|x| (x - m).exp()).sum();
        out.iter_mut().zip(&logits).for_each(|(out, x)| *out += (x - m).exp() / l / heads as f64);
    }
    out
}

proptest! {
    #![proptest_config(crate::testing::cases(32))]

    #[test]
    fn expected_attention_agrees_with_its_definition(
        dim in prop::sample::select(vec![8_usize, 24, 40, 64]),
        (heads, n, queries) in (1..4_usize, 0..200_usize, 1..60_usize),
        style in prop::sample::select(vec![RopeStyle::Interleaved, RopeStyle::HalfSplit]),
        all_pairs in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let q = keys(seed, queries * heads, dim);
        let x = keys(seed ^ 1, n, dim);
        let pairs = if all_pairs { dim / 2 } else { dim / 4 };
        let rotation: Vec<[f32; 2]> = vector(seed ^ 2, 2 * pairs).as_chunks::<2>().0.to_vec();
        let mut moments = QueryMoments::new(heads + 1, dim);
        // One more head before the others, which is not used.
        let wider: Vec<f32> = q.chunks(heads * dim).flat_map(|q| [&vec![9.0; dim], q].concat()).collect();
        moments.add(&Pool::new(1), &wider);
        let mut out = vec![f32::NAN; n];
        let in_memory = InMemory { x: &x, dim };
        expected_attention(&Pool::new(2), &moments, &rotation, style, &in_memory, 1..heads + 1, &mut out);

        let expect = naive_expected(&q, heads, dim, &rotation, style, &x);
        for (found, expect) in out.iter().zip(&expect) {
            prop_assert!((f64::from(*found) - expect).abs() < 1e-4 * expect + 1e-7, "{} for {}", found, expect);
        }
        let queries: Vec<HeadQueries> = (1..heads + 1).map(|head| HeadQueries::of(&moments, head)).collect();
        let lanes = dim.next_multiple_of(16);
        let x = Keys { keys: &in_memory, lanes, rotation: &rotation, style };
        for isa in crate::testing::isas() {
            let mut of_isa = vec![f32::NAN; n];
            expected_with(isa, &Pool::new(1), &queries, &x, &mut of_isa);
            prop_assert_eq!(bits(&of_isa), bits(&out), "{:?}", isa);
        }
    }
}

#[test]
#[should_panic(expected = "no queries were observed")]
fn nothing_is_expected_of_queries_that_were_not_observed() {
    let moments = QueryMoments::new(1, 8);
    let keys = InMemory { x: &[0.0; 8], dim: 8 };
    expected_attention(&Pool::new(1), &moments, &[], RopeStyle::HalfSplit, &keys, 0..1, &mut [0.0]);
}

/// The slope by which a change of vectors would lower what [`WeightedSums::fit`] minimises, by its definition.
fn slope(weights: &[f32], width: usize, left: &[f32], change: &[f32], strength: f64, at: [usize; 2]) -> f64 {
    let (rows, dim) = (weights.chunks(width), change.len() / width);
    let square = weights.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>() / width as f64;
    let [column, d] = at;
    let of_sums: f64 =
        rows.zip(left.chunks(dim)).map(|(w, left)| f64::from(w[column]) * f64::from(left[d])).sum();
    of_sums - strength * square * f64::from(change[column * dim + d])
}

proptest! {
    #![proptest_config(crate::testing::cases(32))]

    #[test]
    fn a_fit_leaves_no_slope_and_is_the_same_everywhere(
        dim in prop::sample::select(vec![8_usize, 24, 64, 100]),
        (n, width) in (1..300_usize, 1..60_usize),
        seed in any::<u64>(),
    ) {
        let weights: Vec<f32> = vector(seed, n * width).iter().map(|w| w.abs()).collect();
        let (lacking, sums) = (vector(seed ^ 1, n * dim), WeightedSums { weights: &weights, width });
        let mut left = lacking.clone();
        let change = sums.fit(0..width, 1e-2, &mut left);
        let size: f64 = weights.iter().map(|w| f64::from(*w)).sum::<f64>().max(1.0);
        for column in 0..width {
            for d in 0..dim {
                let slope = slope(&weights, width, &left, &change, 1e-2, [column, d]);
                prop_assert!(slope.abs() < 2e-5 * size, "{} of {}", slope, size);
            }
        }
        let mut subtracted = lacking.clone();
        sums.subtract(0..width, &change, &mut subtracted);
        prop_assert_eq!(bits(&subtracted), bits(&left));
        for isa in crate::testing::isas() {
            let mut left_here = lacking.clone();
            let here = sums.fit_with(isa, 0..width, 1e-2, &mut left_here);
            prop_assert_eq!([bits(&here), bits(&left_here)], [bits(&change), bits(&left)], "{:?}", isa);
        }
    }
}

#[test]
fn vectors_that_no_sum_needs_and_those_of_nonsense_do_not_change() {
    let sums = WeightedSums { weights: &[0.5, 0.0, 1.0, 0.0], width: 2 };
    let change = sums.fit(0..2, 1e-3, &mut [1.0, -1.0]);
    assert!(change[0] != 0.0 && change[1] == 0.0, "{change:?}");
    assert_eq!(sums.fit(1..2, 1e-3, &mut [1.0, -1.0]), [0.0]);
    assert_eq!(sums.fit(0..2, 1e-3, &mut [f32::NAN, 1.0]), [0.0; 2]);
    assert_eq!(WeightedSums { weights: &[], width: 2 }.fit(0..2, 1e-3, &mut []), [0.0; 2]);
}
