//! Recurrences compared with f64, every variant compared with the specification, and every division of rows:
//! to the bit.

use proptest::prelude::*;

use super::convolution::convolve_with;
use super::linear::advance_with;
use super::variants::kernels_of;
use super::*;
use crate::testing::Random;
use crate::{Isa, Pool};

fn vector(seed: u64, len: usize) -> Vec<f32> {
    let mut random = Random(seed);
    (0..len).map(|_| random.float()).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// A layer of both kinds, and the inputs of its rows.
struct Layer {
    conv: ConvWeights,
    shape: LinearShape,
    /// `[n, channels]`: queries, keys, values.
    x: Vec<f32>,
    decays: Vec<f32>,
    rates: Vec<f32>,
    skips: Vec<f32>,
}

/// Offset of the convolution's elements: an arbitrary number.
const OFFSET: usize = 5;

impl Layer {
    fn new(shape: LinearShape, width: usize, n: usize, seed: u64) -> Layer {
        let channels = 2 * shape.key_heads * shape.key_dim + shape.heads * shape.value_dim;
        let bias = seed.is_multiple_of(2).then(|| vector(seed ^ 1, channels));
        let positive = |seed| vector(seed, n * shape.heads).into_iter().map(f32::abs).collect();
        Layer {
            conv: ConvWeights::new(&vector(seed ^ 2, channels * width), width, bias, seed.is_multiple_of(3)),
            shape,
            x: vector(seed ^ 3, n * channels),
            decays: positive(seed ^ 4),
            rates: positive(seed ^ 5),
            skips: if seed.is_multiple_of(5) { vector(seed ^ 6, shape.heads) } else { Vec::new() },
        }
    }

    fn channels(&self) -> usize {
        2 * self.shape.key_heads * self.shape.key_dim + self.values()
    }

    fn values(&self) -> usize {
        self.shape.heads * self.shape.value_dim
    }

    fn arena(&self, slots: usize) -> StateArena {
        let floats = OFFSET + self.conv.state_floats() + self.shape.state_floats();
        StateArena::new(floats, slots).unwrap()
    }

    /// Runs rows `first..` of the layer, as many as the sequences have, in one batch.
    fn run(
        &self,
        isa: Isa,
        pool: &Pool,
        arena: &mut StateArena,
        first: usize,
        rows: &[StateRows<'_>],
    ) -> Vec<f32> {
        let (kernels, n) = (kernels_of(isa), rows.iter().map(|rows| rows.rows.end).max().unwrap_or(0));
        let (channels, heads, key) =
            (self.channels(), self.shape.heads, self.shape.key_heads * self.shape.key_dim);
        let mut mixed = vec![0.0; n * channels];
        let x = &self.x[first * channels..][..n * channels];
        convolve_with(kernels, pool, arena, OFFSET, &self.conv, rows, x, &mut mixed);
        let columns = |start| Columns { data: &mixed, width: channels, start };
        let inputs = LinearInputs {
            q: columns(0),
            k: columns(key),
            v: columns(2 * key),
            decays: &self.decays[first * heads..][..n * heads],
            rates: &self.rates[first * heads..][..n * heads],
            skips: &self.skips,
        };
        let mut out = vec![0.0; n * self.values()];
        let offset = OFFSET + self.conv.state_floats();
        advance_with(kernels, pool, arena, offset, self.shape, rows, inputs, &mut out);
        out
    }
}

fn all(rows: std::ops::Range<usize>, live: u32) -> StateRows<'static> {
    StateRows { certain: rows.len(), rows, live, saves: &[] }
}

fn any_shape() -> impl Strategy<Value = LinearShape> {
    let rule = prop::sample::select(vec![StateRule::Delta, StateRule::Scan]);
    let sharing = prop::sample::select(vec![KeySharing::Grouped, KeySharing::Tiled]);
    (rule, sharing, 1..4_usize, 1..4_usize, 1..40_usize, 1..70_usize).prop_map(
        |(rule, sharing, key_heads, repeat, key_dim, value_dim)| LinearShape {
            rule,
            heads: key_heads * repeat,
            key_heads,
            sharing,
            key_dim,
            value_dim,
        },
    )
}

proptest! {
    #![proptest_config(crate::testing::cases(60))]

    #[test]
    fn every_variant_equals_the_specification(
        shape in any_shape(), width in 1..=ConvWeights::WIDTH_MAX, n in 1..12_usize, seed in any::<u64>(),
    ) {
        let layer = Layer::new(shape, width, n, seed);
        let run = |isa: Isa| {
            let mut arena = layer.arena(1);
            let out = layer.run(isa, &Pool::new(1), &mut arena, 0, &[all(0..n, 0)]);
            (bits(&out), arena.state(0).to_vec())
        };
        for isa in crate::testing::isas() {
            prop_assert!(run(isa) == run(Isa::Scalar), "{isa:?}");
        }
    }

    /// Rows in batches, on threads, with copies on the way and dropped rows, equal rows one by one.
    #[test]
    fn cuts_change_no_bit(
        shape in any_shape(), width in 1..=ConvWeights::WIDTH_MAX,
        cuts in prop::collection::vec((1..7_usize, 0..4_usize), 1..6), seed in any::<u64>(),
    ) {
        let certain: usize = cuts.iter().map(|&(rows, _)| rows).sum();
        let layer = Layer::new(shape, width, certain + 4, seed);
        let (isa, pool) = (Isa::current(), Pool::new(3));
        let mut stepwise = layer.arena(1);
        let mut states = Vec::new();
        let steps: Vec<Vec<u32>> = (0..certain + 4).map(|row| {
            let out = layer.run(isa, &Pool::new(1), &mut stepwise, row, &[all(0..1, 0)]);
            states.push(stepwise.state(0).to_vec());
            bits(&out)
        }).collect();
        let (mut arena, mut first) = (layer.arena(3), 0);
        for (rows, tried) in cuts {
            let save = 1 + seed as usize % rows;
            let saves = [(save, 1), (rows, 2)];
            let batch = StateRows { rows: 0..rows + tried, certain: rows, live: 0, saves: &saves };
            let out = layer.run(isa, &pool, &mut arena, first, &[batch]);
            for (step, row) in steps[first..].iter().zip(out.chunks(layer.values())) {
                prop_assert_eq!(&bits(row), step);
            }
            prop_assert!(arena.state(0) == states[first + rows - 1]);
            prop_assert!(arena.state(1) == states[first + save - 1]);
            prop_assert!(arena.state(2) == arena.state(0));
            first += rows;
        }
    }

    /// Two sequences in one batch equal two separate batches.
    #[test]
    fn sequences_do_not_meet(
        shape in any_shape(), width in 1..=ConvWeights::WIDTH_MAX, lens in [1..9_usize, 1..9_usize],
        seed in any::<u64>(),
    ) {
        let layer = Layer::new(shape, width, lens[0] + lens[1], seed);
        let (isa, pool) = (Isa::current(), Pool::new(2));
        let mut together = layer.arena(2);
        let sequences = [all(0..lens[0], 1), all(lens[0]..lens[0] + lens[1], 0)];
        let out = layer.run(isa, &pool, &mut together, 0, &sequences);
        let mut alone = layer.arena(2);
        let mut expect = layer.run(isa, &pool, &mut alone, 0, &[all(0..lens[0], 1)]);
        expect.extend(layer.run(isa, &pool, &mut alone, lens[0], &[all(0..lens[1], 0)]));
        prop_assert_eq!(bits(&out), bits(&expect));
        prop_assert!([0, 1].iter().all(|&slot| together.state(slot) == alone.state(slot)));
    }
}

#[test]
fn a_large_layer_is_the_same_on_any_number_of_threads() {
    let shape = LinearShape {
        rule: StateRule::Delta,
        heads: 4,
        key_heads: 2,
        sharing: KeySharing::Tiled,
        key_dim: 64,
        value_dim: 72,
    };
    let layer = Layer::new(shape, 4, 50, 30);
    let run = |threads| {
        let mut arena = layer.arena(1);
        let out = layer.run(Isa::current(), &Pool::new(threads), &mut arena, 0, &[all(0..50, 0)]);
        (bits(&out), arena.state(0).to_vec())
    };
    assert!(run(1) == run(4));
}

#[test]
fn a_convolution_agrees_with_f64() {
    for (width, channels, n) in [(1, 3, 4), (3, 300, 7), (4, 17, 2), (8, 40, 20)] {
        let (taps, bias) = (vector(1, channels * width), vector(2, channels));
        let x = vector(3, n * channels);
        for silu in [false, true] {
            let weights = ConvWeights::new(&taps, width, Some(bias.clone()), silu);
            let (mut arena, mut out) =
                (StateArena::new(weights.state_floats(), 1).unwrap(), vec![0.0; n * channels]);
            convolve(&Pool::new(2), &mut arena, 0, &weights, &[all(0..n, 0)], &x, &mut out);
            for row in 0..n {
                for channel in 0..channels {
                    let tap = |back: usize| match row.checked_sub(back) {
                        Some(row) => f64::from(x[row * channels + channel]),
                        None => 0.0,
                    };
                    let weight = |back: usize| f64::from(taps[channel * width + width - 1 - back]);
                    let sum: f64 = (0..width).map(|back| tap(back) * weight(back)).sum();
                    let sum = sum + f64::from(bias[channel]);
                    let expect = if silu { sum / (1.0 + (-sum).exp()) } else { sum };
                    let found = f64::from(out[row * channels + channel]);
                    assert!((found - expect).abs() < 2e-6, "{width} {row} {channel}: {found} for {expect}");
                }
            }
        }
    }
}

/// The state as in the papers: all of it decays, then its value for a key changes.
#[test]
fn both_rules_agree_with_f64() {
    for (rule, sharing) in [(StateRule::Delta, KeySharing::Tiled), (StateRule::Scan, KeySharing::Grouped)] {
        let shape = LinearShape { rule, heads: 4, key_heads: 2, sharing, key_dim: 10, value_dim: 18 };
        let (n, keys, values) = (9, 20, 72);
        let [q, k, v] = [(1, keys), (2, keys), (3, values)].map(|(seed, width)| vector(seed, n * width));
        let positive = |seed| -> Vec<f32> { vector(seed, n * 4).into_iter().map(f32::abs).collect() };
        let (decays, rates, skips) = (positive(4), positive(5), vector(6, 4));
        let columns = |data, width| Columns { data, width, start: 0 };
        let inputs = LinearInputs {
            q: columns(&q, keys),
            k: columns(&k, keys),
            v: columns(&v, values),
            decays: &decays,
            rates: &rates,
            skips: &skips,
        };
        let mut arena = StateArena::new(shape.state_floats(), 1).unwrap();
        let mut out = vec![0.0; n * values];
        advance(&Pool::new(2), &mut arena, 0, shape, &[all(0..n, 0)], inputs, &mut out);
        for head in 0..4 {
            let key = if sharing == KeySharing::Tiled { head % 2 } else { head / 2 };
            let mut state = [[0.0_f64; 10]; 18];
            for row in 0..n {
                let number = |x: &[f32], at: usize| f64::from(x[at]);
                let key_of = |x: &[f32], i: usize| number(x, row * keys + key * 10 + i);
                let (decay, rate) = (number(&decays, row * 4 + head), number(&rates, row * 4 + head));
                for (j, column) in state.iter_mut().enumerate() {
                    let value = number(&v, row * values + head * 18 + j);
                    column.iter_mut().for_each(|x| *x *= decay);
                    let known: f64 = (0..10).map(|i| key_of(&k, i) * column[i]).sum();
                    let change = rate * if rule == StateRule::Delta { value - known } else { value };
                    (0..10).for_each(|i| column[i] += key_of(&k, i) * change);
                    let read: f64 = (0..10).map(|i| key_of(&q, i) * column[i]).sum();
                    let expect = read + number(&skips, head) * value;
                    let found = number(&out, row * values + head * 18 + j);
                    assert!((found - expect).abs() < 1e-5, "{rule:?} {head} {row} {j}: {found} for {expect}");
                }
            }
        }
    }
}

#[test]
fn steps_of_time_agree_with_their_definitions() {
    let (pool, bias) = (Pool::new(2), [0.5, -3.0]);
    for rows in [3, 2000] {
        let x: Vec<f32> = vector(1, rows * 2).iter().map(|x| x * 40.0).collect();
        let mut steps = x.clone();
        softplus(&pool, &mut steps, &bias);
        let mut left = steps.clone();
        decays(&pool, &mut left, &[-0.1, -2.0]);
        for (i, x) in x.iter().enumerate() {
            let expect = (f64::from(*x) + f64::from(bias[i % 2])).exp().ln_1p();
            assert!((f64::from(steps[i]) - expect).abs() <= 1e-6 * expect, "{} for {expect}", steps[i]);
            let expect = (f64::from(steps[i]) * f64::from([-0.1_f32, -2.0][i % 2])).exp();
            assert!((f64::from(left[i]) - expect).abs() <= 1e-7 * expect, "{} for {expect}", left[i]);
        }
    }
    let mut extreme = [1000.0, -1000.0];
    softplus(&pool, &mut extreme, &[0.0; 2]);
    assert_eq!(extreme, [1000.0, 0.0]);
}

#[test]
fn vectors_get_their_length_and_others_stay() {
    let before = vector(1, 3 * 20);
    let mut x = before.clone();
    unit_norm(&Pool::new(1), &mut x, 20, (4, 2, 6), 1e-6, 0.5);
    for (row, before) in x.chunks(20).zip(before.chunks(20)) {
        assert_eq!((&row[..4], &row[16..]), (&before[..4], &before[16..]));
        for vector in row[4..16].chunks(6) {
            let length: f32 = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
            assert!((length - 0.5).abs() < 1e-5, "{length}");
        }
    }
}

#[test]
#[should_panic(expected = "named twice")]
fn a_state_is_not_continued_twice() {
    let weights = ConvWeights::new(&[1.0; 4], 2, None, false);
    let mut arena = StateArena::new(weights.state_floats(), 2).unwrap();
    let sequences = [all(0..1, 1), all(1..2, 1)];
    convolve(&Pool::new(1), &mut arena, 0, &weights, &sequences, &[0.0; 4], &mut [0.0; 4]);
}
