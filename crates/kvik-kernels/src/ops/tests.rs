//! The small operations compared with f64, and every variant compared with the specification, to the bit.

use proptest::prelude::*;

use super::rope::{Rotation, Way};
use super::*;
use crate::testing::Random;

fn vector(seed: u64, len: usize, scale: f32) -> Vec<f32> {
    let mut random = Random(seed);
    (0..len).map(|_| random.float() * scale).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn exp(kernels: OpsKernels, x: &[f32]) -> Vec<f32> {
    let mut y = x.to_vec();
    // SAFETY: the caller passes kernels of this machine.
    unsafe { (kernels.exp)(&mut y) };
    y
}

#[test]
fn exp_is_within_two_units_in_the_last_place() {
    // Every 61st float of -87.3..88, both signs.
    let range = |low: f32, high: f32| (low.to_bits()..high.to_bits()).step_by(61).map(f32::from_bits);
    let xs: Vec<f32> = range(1e-10, 88.0).chain(range(-1e-10, -87.3)).collect();
    let worst = kvik_testing::largest(xs.iter().zip(exp(kernels(), &xs)).map(|(x, y)| {
        let expect = f64::from(*x).exp();
        let ulp = f64::from((expect as f32).next_up()) - f64::from(expect as f32);
        (f64::from(y) - expect).abs() / ulp
    }));
    assert!(worst <= 2.0, "{worst} units in the last place");
}

#[test]
fn exp_at_its_ends() {
    let x = [f32::NEG_INFINITY, -1e30, -88.0, 0.0, -0.0, 88.5, 1e30, f32::INFINITY, f32::NAN];
    for isa in crate::testing::isas() {
        let y = exp(kernels_of(isa), &x);
        assert_eq!(y[..8], [0.0, 0.0, 0.0, 1.0, 1.0, f32::INFINITY, f32::INFINITY, f32::INFINITY], "{isa:?}");
        assert!(y[8].is_nan(), "{isa:?}");
    }
}

#[test]
fn soft_caps_agree_with_f64_and_factors_are_products() {
    let pool = Pool::new(2);
    for len in [1, 15, 16, 33, 70_000] {
        let before = vector(5, len, 90.0);
        let mut capped = before.clone();
        soft_cap(&pool, &mut capped, 30.0);
        for (x, capped) in before.iter().zip(&capped) {
            let expect = 30.0 * (f64::from(*x) / 30.0).tanh();
            assert!((f64::from(*capped) - expect).abs() <= 1e-6 * expect.abs(), "{x}: {capped} for {expect}");
        }
        for isa in crate::testing::isas() {
            let mut same = before.clone();
            // SAFETY: the machine has the instructions.
            unsafe { (kernels_of(isa).soft_cap)(&mut same, 30.0) };
            assert_eq!(bits(&same), bits(&capped), "{isa:?}");
        }
        let mut multiplied = before.clone();
        multiply(&pool, &mut multiplied, 0.3);
        assert!(before.iter().zip(&multiplied).all(|(x, y)| x * 0.3 == *y));
    }
}

#[test]
fn rms_norm_agrees_with_f64() {
    for (n, d) in [(1, 1), (3, 8), (2, 100), (1, 1024), (40, 1000), (64, 896)] {
        let (x, weight) = (vector(1, n * d, 3.0), vector(2, d, 1.0));
        let mut out = vec![0.0; n * d];
        rms_norm(&Pool::new(2), &x, &weight, 1e-6, &mut out);
        for (x, out) in x.chunks(d).zip(out.chunks(d)) {
            let mean = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / d as f64;
            for ((x, out), weight) in x.iter().zip(out).zip(&weight) {
                let expect = f64::from(*x) / (mean + 1e-6).sqrt() * f64::from(*weight);
                assert!((f64::from(*out) - expect).abs() < 2e-6, "{n}x{d}: {out} for {expect}");
            }
        }
    }
}

const ACTIVATIONS: [Activation; 5] =
    [Activation::SwiGlu, Activation::GeGlu, Activation::SwiGluOai, Activation::Gelu, Activation::ReluSquared];

/// The definition of an activation of one element, in f64.
fn exact(activation: Activation, x: f64, up: f64) -> f64 {
    let gelu = |x: f64| {
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
        // 1 + tanh, without cancellation near zero.
        x * 0.5 * if inner < 0.0 { 2.0 / (1.0 + (-2.0 * inner).exp()) } else { 1.0 + inner.tanh() }
    };
    match activation {
        Activation::SwiGlu => x / (1.0 + (-x).exp()) * up,
        Activation::GeGlu => gelu(x) * up,
        Activation::SwiGluOai => {
            let (gate, up) = (x.min(7.0), up.clamp(-7.0, 7.0));
            gate / (1.0 + (-1.702 * gate).exp()) * (up + 1.0)
        }
        Activation::Gelu => gelu(x),
        Activation::ReluSquared => x.max(0.0).powi(2),
    }
}

#[test]
fn activations_agree_with_f64() {
    for activation in ACTIVATIONS {
        let (mut x, up) = (vector(1, 70_001, 20.0), vector(2, 70_001, 9.0));
        let before = x.clone();
        activate(&Pool::new(2), activation, &mut x, if activation.is_gated() { &up } else { &[] });
        for ((before, up), x) in before.iter().zip(&up).zip(&x) {
            let expect = exact(activation, f64::from(*before), f64::from(*up));
            // The argument of the exponential grows with the cube of gelu's, and the rounding error with it.
            let close = (f64::from(*x) - expect).abs() <= 2e-5 * expect.abs() + 1e-12;
            assert!(close, "{activation:?} {before} {up}: {x} for {expect}");
            let tight = before.abs() > 4.0 || (f64::from(*x) - expect).abs() <= 2e-6 * expect.abs() + 1e-12;
            assert!(tight, "{activation:?} {before} {up}: {x} for {expect}");
        }
    }
}

#[test]
fn activations_at_their_ends() {
    let x = [0.0, -0.0, 1e4, -1e4, 3e38, -3e38, f32::INFINITY];
    let check = |activation: Activation, up: f32, expect: [f32; 7]| {
        for isa in crate::testing::isas() {
            let mut found = x;
            let up = [up; 7];
            // SAFETY: the instruction set is available.
            unsafe { (kernels_of(isa).activate)(activation, &mut found, &up) };
            assert_eq!(found, expect, "{activation:?} {isa:?}");
        }
    };
    check(Activation::SwiGlu, 1.0, [0.0, 0.0, 1e4, 0.0, 3e38, 0.0, f32::INFINITY]);
    check(Activation::GeGlu, 1.0, [0.0, 0.0, 1e4, 0.0, 3e38, 0.0, f32::INFINITY]);
    // Both operands are limited: the gate above, the other on both sides.
    let seven = 7.0 / (1.0 + (-1.702_f32 * 7.0).exp());
    check(Activation::SwiGluOai, 100.0, [0.0, 0.0, seven, 0.0, seven, 0.0, seven].map(|x| x * 8.0));
    check(Activation::SwiGluOai, -100.0, [0.0, 0.0, seven, 0.0, seven, 0.0, seven].map(|x| x * -6.0));
    for isa in crate::testing::isas() {
        let mut squared = [2.0, -2.0, f32::NAN, f32::INFINITY];
        // SAFETY: the instruction set is available.
        unsafe { (kernels_of(isa).activate)(Activation::ReluSquared, &mut squared, &[]) };
        assert_eq!(squared, [4.0, 0.0, 0.0, f32::INFINITY], "{isa:?}");
    }
}

#[test]
fn probabilities_agree_with_f64() {
    for d in [1, 5, 16, 33, 128, 1000] {
        let logits = vector(7, 70 * d, 30.0);
        let (mut soft, mut each) = (logits.clone(), logits.clone());
        softmax(&Pool::new(2), &mut soft, d);
        sigmoid(&Pool::new(2), &mut each);
        for (row, (logits, soft)) in logits.chunks(d).zip(soft.chunks(d)).enumerate() {
            let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let powers: Vec<f64> =
                logits.iter().map(|x| (f64::from(*x) - f64::from(largest)).exp()).collect();
            let sum: f64 = powers.iter().sum();
            for (found, power) in soft.iter().zip(&powers) {
                assert!((f64::from(*found) - power / sum).abs() <= 4e-6 * power / sum, "row {row} of {d}");
            }
        }
        for (x, found) in logits.iter().zip(&each) {
            let expect = 1.0 / (1.0 + (-f64::from(*x)).exp());
            assert!((f64::from(*found) - expect).abs() <= 1e-6 * expect, "{x}: {found} for {expect}");
        }
    }
}

#[test]
fn sums_are_plain() {
    let (mut x, y) = (vector(1, 70_003, 1.0), vector(2, 70_003, 1.0));
    let expect: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
    add(&Pool::new(2), &mut x, &y);
    assert_eq!(x, expect);
    let mut rows = vec![1.0; 3 * 5];
    add_bias(&Pool::new(1), &mut rows, &[0.0, 1.0, 2.0, 3.0, 4.0]);
    assert_eq!(rows, [1.0, 2.0, 3.0, 4.0, 5.0].repeat(3));
}

#[test]
fn rope_rotates_pairs_of_either_style() {
    // One frequency of a quarter turn per position and one of zero; the last element stays.
    let table = RopeTable::new(&[std::f32::consts::FRAC_PI_2, 0.0], 8, 1.0);
    let check = |style, expect: [f32; 5]| {
        let mut x = [1.0, 2.0, 3.0, 4.0, 5.0].repeat(2);
        rope(&Pool::new(1), &mut x, 5, &[0, 1], &table, style);
        assert_eq!(x[..5], [1.0, 2.0, 3.0, 4.0, 5.0]);
        let close = x[5..].iter().zip(expect).all(|(x, expect)| (x - expect).abs() < 1e-6);
        assert!(close, "{style:?}: {x:?}");
    };
    check(RopeStyle::Interleaved, [-2.0, 1.0, 3.0, 4.0, 5.0]);
    check(RopeStyle::HalfSplit, [-3.0, 2.0, 1.0, 4.0, 5.0]);
}

#[test]
fn rope_keeps_its_precision_far_out() {
    let frequencies: Vec<f32> = (0..32).map(|i| 10_000_f32.powf(-(i as f32) / 32.0)).collect();
    let table = RopeTable::new(&frequencies, 40_000, 1.5);
    let mut x = [1.0, 0.0].repeat(32);
    rope(&Pool::new(1), &mut x, 64, &[39_999], &table, RopeStyle::Interleaved);
    for (pair, frequency) in x.chunks(2).zip(frequencies) {
        let angle = 39_999.0 * f64::from(frequency);
        assert!((f64::from(pair[0]) - 1.5 * angle.cos()).abs() < 1e-6);
        assert!((f64::from(pair[1]) - 1.5 * angle.sin()).abs() < 1e-6);
    }
}

#[test]
fn a_row_beyond_the_table_is_that_of_a_longer_table() {
    let frequencies: Vec<f32> = (0..32).map(|i| 10_000_f32.powf(-(i as f32) / 32.0)).collect();
    let [short, long] = [10, 3000].map(|positions| RopeTable::new(&frequencies, positions, 1.5));
    assert_eq!((short.positions(), long.positions()), (10, 3000));
    let positions: Vec<u32> = (0..3000).collect();
    let [a, b] = [&short, &long].map(|table| {
        let mut x = vector(1, 3000 * 64, 1.0);
        rope(&Pool::new(2), &mut x, 64, &positions, table, RopeStyle::HalfSplit);
        bits(&x)
    });
    assert_eq!(a, b);
    assert_eq!(short.mean_rotation(5..3000), long.mean_rotation(5..3000));
}

#[test]
fn the_mean_rotation_is_the_mean_of_rotations() {
    let table = RopeTable::new(&[std::f32::consts::FRAC_PI_2, 0.0], 3, 2.0);
    // Quarter turns: a whole turn has no mean direction, a step of one has the direction in between.
    let close = |found: Vec<[f32; 2]>, expect: [[f32; 2]; 2]| {
        let found = found.as_flattened().iter().zip(expect.as_flattened());
        assert!(found.clone().all(|(a, b)| (a - b).abs() < 1e-6), "{found:?}");
    };
    close(table.mean_rotation(1..5), [[0.0, 0.0], [2.0, 0.0]]);
    close(table.mean_rotation(4..6), [[1.0, 1.0], [2.0, 0.0]]);
}

proptest! {
    #[test]
    fn rotation_goes_beyond_the_table_by_exact_angles_and_back(
        pairs in 0..40_usize,
        heads in 1..4_usize,
        positions in prop::collection::vec(0..300_000_u32, 1..5),
        style in prop::sample::select(vec![RopeStyle::Interleaved, RopeStyle::HalfSplit]),
        factor in prop::sample::select(vec![1.0_f32, 1.25]),
        seed in any::<u64>(),
    ) {
        let frequencies: Vec<f32> = (0..pairs).map(|i| 10_000_f32.powf(-(i as f32) / pairs as f32)).collect();
        let (dim, pool) = (2 * pairs + 3, Pool::new(2));
        let x = vector(seed, positions.len() * heads * dim, 1.0);
        let mut beyond = x.clone();
        rope(&pool, &mut beyond, dim, &positions, &RopeTable::new(&frequencies, 100, factor), style);
        for (i, &position) in positions.iter().enumerate() {
            let row = i * heads * dim..(i + 1) * heads * dim;
            let exact: Vec<[f64; 2]> = frequencies.iter().map(|&frequency| {
                let angle = f64::from(position) * f64::from(frequency);
                [angle.cos(), angle.sin()].map(|x| x * f64::from(factor))
            }).collect();
            for (head, rotated) in x[row.clone()].chunks(dim).zip(beyond[row].chunks(dim)) {
                for (i, [cos, sin]) in exact.iter().map(|r| r.map(|x| x as f32)).enumerate() {
                    let [low, high] = match style {
                        RopeStyle::Interleaved => [2 * i, 2 * i + 1],
                        RopeStyle::HalfSplit => [i, i + pairs],
                    };
                    let expect = [head[low].mul_add(cos, -(head[high] * sin)), head[low].mul_add(sin, head[high] * cos)];
                    prop_assert_eq!([rotated[low], rotated[high]], expect, "{} {:?}", position, style);
                }
                prop_assert_eq!(&rotated[2 * pairs..], &head[2 * pairs..]);
            }
        }
        rope_back(&pool, &mut beyond, dim, &positions, &RopeTable::new(&frequencies, 100, factor), style);
        prop_assert!(beyond.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-6), "{:?} {:?}", beyond, x);
    }

    #[test]
    fn every_variant_equals_the_specification(
        n in 1..5_usize,
        d in 1..300_usize,
        scale in prop::sample::select(vec![1e-3_f32, 1.0, 100.0]),
        seed in any::<u64>(),
    ) {
        let pool = Pool::new(1);
        let (x, y) = (vector(seed, n * d, scale), vector(seed ^ 1, n * d, 1.0));
        let frequencies: Vec<f32> = (0..d / 2).map(|i| 1.0 / (1 + i) as f32).collect();
        let table = RopeTable::new(&frequencies, 100, 1.0);
        let positions: Vec<u32> = (0..n as u32).map(|i| i * 33 % 100).collect();
        let all = |isa: Isa| {
            let kernels = kernels_of(isa);
            let mut normed = x.clone();
            rms_norm_with(kernels, &pool, &mut normed, &y[..d], d, 1e-5);
            let mut sum = x.clone();
            let (mut soft, mut each) = (x.clone(), x.clone());
            // SAFETY: the instruction set is available.
            unsafe {
                (kernels.add)(&mut sum, &y);
                (kernels.softmax)(&mut soft);
                (kernels.sigmoid)(&mut each);
            }
            let activated = ACTIVATIONS.map(|activation| {
                let mut activated = x.clone();
                // SAFETY: as above.
                unsafe { (kernels.activate)(activation, &mut activated, &y) };
                bits(&activated)
            });
            let rotated = [RopeStyle::Interleaved, RopeStyle::HalfSplit].map(|style| {
                let mut rotated = x.clone();
                let rotation = Rotation { table: &table, style, way: Way::Forth };
                rotation.run(kernels, &pool, &mut rotated, d, &positions);
                let forth = bits(&rotated);
                Rotation { way: Way::Back, ..rotation }.run(kernels, &pool, &mut rotated, d, &positions);
                (forth, bits(&rotated))
            });
            (bits(&normed), activated, bits(&sum), bits(&exp(kernels, &x)), rotated, bits(&soft), bits(&each))
        };
        for isa in crate::testing::isas() {
            prop_assert_eq!(all(isa), all(Isa::Scalar), "{:?}", isa);
        }
    }

    /// The sum of weights of a row has one order in every variant, and agrees with f64.
    #[test]
    fn logits_weigh_the_same_in_every_variant(
        len in 0..300_usize,
        scale in prop::sample::select(vec![0.01_f32, 3.0, 100.0]),
        rate in prop::sample::select(vec![f32::MIN_POSITIVE, 0.5, 1.0, 1.25, f32::MAX]),
        above in prop::sample::select(vec![f32::NEG_INFINITY, -1.0, 0.0, 0.5, 1.0]),
        odd in prop::collection::vec((0..300_usize, prop::sample::select(vec![f32::NAN, f32::NEG_INFINITY, f32::MIN])), 0..4),
        seed in any::<u64>(),
    ) {
        let (mut logits, above) = (vector(seed, len, scale), above * scale);
        odd.iter().filter(|(at, _)| *at < len).for_each(|&(at, odd)| logits[at] = odd);
        let all = |isa: Isa| {
            let (kernels, mut weights) = (kernels_of(isa), logits.clone());
            // SAFETY: the instruction set is available.
            unsafe {
                let weighing = Weighing { origin: scale, rate };
                let mass = (kernels.mass)(&logits, weighing, above);
                (kernels.weigh)(&mut weights, weighing);
                ((kernels.largest)(&logits), mass, weights)
            }
        };
        let (most, mass, weights) = all(Isa::Scalar);
        for isa in crate::testing::isas() {
            let (same, other, others) = all(isa);
            prop_assert_eq!(bits(&[same, other.all, other.above]), bits(&[most, mass.all, mass.above]), "{:?}", isa);
            prop_assert_eq!(bits(&others), bits(&weights), "{:?}", isa);
        }
        prop_assert_eq!(most, logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let sum = |kept: &dyn Fn(f32) -> bool| {
            let kept = logits.iter().zip(&weights).filter(|(logit, _)| kept(**logit));
            kept.map(|(_, weight)| f64::from(*weight)).sum::<f64>()
        };
        prop_assert!((f64::from(mass.all) - sum(&|_| true)).abs() <= 1e-5 * sum(&|_| true));
        prop_assert!((f64::from(mass.above) - sum(&|logit| logit > above)).abs() <= 1e-5 * sum(&|_| true));
        for (logit, weight) in logits.iter().zip(&weights) {
            let exponent = (f64::from(*logit) - f64::from(scale)) * f64::from(rate);
            let expect = if exponent > -87.3 { exponent.exp() } else { 0.0 };
            let slack = (1e-6 + 2e-7 * exponent.abs()) * expect;
            prop_assert!(expect == 0.0 || (f64::from(*weight) - expect).abs() <= slack, "{} {}", logit, weight);
            prop_assert!(expect > 0.0 || *weight < 1e-37, "{} {}", logit, weight);
        }
    }
}
