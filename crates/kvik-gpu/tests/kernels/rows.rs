//! The small operations beside those of the processor.

use kvik_gpu::{Buffer, Device, HeadWork, NO_PLACE, Step};
use kvik_kernels::{Activation, Pool, RopeStyle, RopeTable, activate, rms_norm, rope, sigmoid, soft_cap};

use crate::{assert_near, bits, device, floats, upload, zeros};

/// The stated tolerance of the small operations.
const TOLERANCE: f32 = 2e-6;

/// What a step makes of `x` in place.
fn changed(device: &mut Device, x: &[f32], work: impl FnOnce(&mut Step<'_>, &mut Buffer<f32>)) -> Vec<f32> {
    let mut x = upload(device, x);
    let mut step = device.step();
    work(&mut step, &mut x);
    step.submit().unwrap();
    device.read(&x).unwrap()
}

fn normed(device: &mut Device, x: &[f32], weight: &[f32]) -> Vec<f32> {
    let rows = x.len() / weight.len();
    let [input, weight] = [x, weight].map(|values| upload(device, values));
    changed(device, &vec![0.0; x.len()], |step, out| {
        step.rms_norm(&input, &weight, rows, 1e-5, out).unwrap();
    })
}

#[test]
fn norms_are_those_of_the_processor_and_of_each_row_alone() {
    let Some(mut device) = device() else { return };
    for (rows, d) in [(1, 64), (5, 1000), (70, 128)] {
        let (x, weight) = (floats(1, rows * d), floats(2, d));
        let mut expect = vec![0.0; x.len()];
        rms_norm(&Pool::new(1), &x, &weight, 1e-5, &mut expect);
        let out = normed(&mut device, &x, &weight);
        assert_near("a norm", &out, &expect, TOLERANCE);
        let alone = normed(&mut device, &x[x.len() - d..], &weight);
        assert_eq!(bits(&alone), bits(&out[x.len() - d..]), "{d}");
    }
}

#[test]
fn rows_beyond_the_first_dimension_of_a_grid_are_normed_too() {
    let Some(mut device) = device() else { return };
    let (x, weight) = (floats(3, 40_000 * 8), floats(4, 8));
    let mut expect = vec![0.0; x.len()];
    rms_norm(&Pool::new(1), &x, &weight, 1e-5, &mut expect);
    assert_near("a norm", &normed(&mut device, &x, &weight), &expect, TOLERANCE);
}

#[test]
fn a_sum_and_its_norm_are_those_of_two_steps_to_the_bit() {
    let Some(mut device) = device() else { return };
    for (rows, d) in [(1, 64), (5, 1000), (70, 128)] {
        let [x, y, weight] = [(1, rows * d), (2, rows * d), (3, d)].map(|(seed, len)| floats(seed, len));
        let sum: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
        let norm = normed(&mut device, &sum, &weight);
        let [mut x, mut y, weight] = [x, y, weight].map(|values| upload(&device, &values));
        let mut step = device.step();
        step.add_norm(&mut x, &mut y, &weight, rows, 1e-5).unwrap();
        step.submit().unwrap();
        assert_eq!(bits(&device.read(&x).unwrap()), bits(&sum), "{d}");
        assert_eq!(bits(&device.read(&y).unwrap()), bits(&norm), "{d}");
    }
}

/// Norm, rotation and norm of heads in three steps.
fn apart(device: &mut Device, x: &[f32], work: &HeadWork<'_>, which: usize, shape: [usize; 3]) -> Vec<f32> {
    let (rows, head_dim) = (shape[0] * shape[1], shape[2]);
    let (mut x, mut other) = (upload(device, x), zeros(device, x.len()));
    let ones = upload(device, &vec![1.0; head_dim]);
    let mut step = device.step();
    if let Some(weights) = work.weights {
        step.rms_norm(&x, weights[which], rows, work.eps, &mut other).unwrap();
        std::mem::swap(&mut x, &mut other);
    }
    step.rope(&mut x, shape, work.positions, (work.angles, work.pairs), work.style).unwrap();
    if work.normed_after {
        step.rms_norm(&x, &ones, rows, work.eps, &mut other).unwrap();
        std::mem::swap(&mut x, &mut other);
    }
    step.submit().unwrap();
    device.read(&x).unwrap()
}

#[test]
fn heads_are_normed_and_rotated_as_in_steps_of_their_own_to_the_bit() {
    let Some(mut device) = device() else { return };
    let (n, heads, kv_heads) = (5, 3, 2);
    let positions = device.upload("positions", &[0u32, 1, 77, 500, 3]).unwrap();
    for (head_dim, pairs) in [(64, 32), (96, 16), (128, 64)] {
        let frequencies: Vec<f32> = (0..pairs).map(|i| 10_000f32.powf(-(i as f32) / pairs as f32)).collect();
        let table = RopeTable::new(&frequencies, 512, 1.0);
        let angles = (0..512).flat_map(|position| table.mean_rotation(position..position + 1));
        let angles = device.upload("angles", &angles.collect::<Vec<_>>()).unwrap();
        let [q_weight, k_weight] = [1, 2].map(|seed| upload(&device, &floats(seed, head_dim)));
        for (is_normed, normed_after) in [(false, false), (true, false), (false, true), (true, true)] {
            let style = if is_normed { RopeStyle::HalfSplit } else { RopeStyle::Interleaved };
            let weights = is_normed.then_some([&q_weight, &k_weight]);
            let (positions, angles) = (&positions, &angles);
            let work = HeadWork { weights, normed_after, eps: 1e-5, positions, angles, pairs, style };
            let [q, k] = [(7, heads), (8, kv_heads)].map(|(seed, heads)| floats(seed, n * heads * head_dim));
            let expect = [(&q, 0, heads), (&k, 1, kv_heads)]
                .map(|(x, which, heads)| apart(&mut device, x, &work, which, [n, heads, head_dim]));
            let [mut q, mut k] = [q, k].map(|values| upload(&device, &values));
            let mut step = device.step();
            step.norm_rope(&work, [&mut q, &mut k], [n, heads, kv_heads, head_dim]).unwrap();
            step.submit().unwrap();
            let found = [&q, &k].map(|x| device.read(x).unwrap());
            assert!(
                found.map(|x| bits(&x)) == expect.map(|x| bits(&x)),
                "{head_dim} {is_normed} {normed_after}"
            );
        }
    }
}

#[test]
fn heads_are_rotated_as_on_the_processor() {
    let Some(mut device) = device() else { return };
    let positions = [0u32, 1, 77, 500, 3];
    for style in [RopeStyle::Interleaved, RopeStyle::HalfSplit] {
        for (heads, head_dim, pairs) in [(3, 64, 32), (2, 128, 16)] {
            let frequencies: Vec<f32> =
                (0..pairs).map(|i| 10_000f32.powf(-(i as f32) / pairs as f32)).collect();
            let table = RopeTable::new(&frequencies, 512, 1.0);
            let angles = (0..512).flat_map(|position| table.mean_rotation(position..position + 1));
            let angles = device.upload("angles", &angles.collect::<Vec<_>>()).unwrap();
            let ids = device.upload("positions", &positions).unwrap();
            let mut expect = floats(7, positions.len() * heads * head_dim);
            let out = changed(&mut device, &expect, |step, x| {
                let shape = [positions.len(), heads, head_dim];
                step.rope(x, shape, &ids, (&angles, pairs), style).unwrap();
            });
            rope(&Pool::new(1), &mut expect, head_dim, &positions, &table, style);
            assert_near("a rotation", &out, &expect, TOLERANCE);
        }
    }
}

#[test]
fn activations_are_those_of_the_processor() {
    let Some(mut device) = device() else { return };
    let kinds = [
        Activation::SwiGlu,
        Activation::GeGlu,
        Activation::SwiGluOai,
        Activation::Gelu,
        Activation::ReluSquared,
    ];
    for kind in kinds {
        let mut x: Vec<f32> = floats(1, 1000).iter().map(|x| x * 20.0).collect();
        x[..4].copy_from_slice(&[0.0, -0.0, -200.0, 200.0]);
        let up = if kind.is_gated() { floats(2, 1000) } else { Vec::new() };
        let on_device = kind.is_gated().then(|| upload(&device, &up));
        let out = changed(&mut device, &x, |step, x| {
            step.activate(kind, x, on_device.as_ref(), 1000).unwrap();
        });
        activate(&Pool::new(1), kind, &mut x, &up);
        assert_near(&format!("{kind:?}"), &out, &x, 4e-6);
    }
}

#[test]
fn sums_and_biases_are_exact() {
    let Some(mut device) = device() else { return };
    let (x, y) = (floats(1, 700), floats(2, 700));
    for period in [700, 100] {
        let on_device = upload(&device, &y);
        let out = changed(&mut device, &x, |step, x| step.add(x, 700, (&on_device, period)).unwrap());
        let expect: Vec<f32> = x.iter().enumerate().map(|(i, x)| x + y[i % period]).collect();
        assert_eq!(bits(&out), bits(&expect), "{period}");
    }
}

#[test]
fn products_of_elements_and_of_rows_are_exact() {
    let Some(mut device) = device() else { return };
    let x = floats(1, 700);
    let product = |factor: f32| x.iter().map(|x| x * factor).collect::<Vec<f32>>();
    for factor in [1.0, 0.22] {
        let out = changed(&mut device, &x, |step, x| step.multiply(x, 700, factor).unwrap());
        assert_eq!(bits(&out), bits(&product(factor)), "{factor}");
    }
    let factors = [0.3, 1.0, -2.0, 1e-3, 7.7, 0.0, 1.1];
    let on_device = upload(&device, &factors);
    let out = changed(&mut device, &x, |step, x| step.scale_rows(x, [7, 100], &on_device).unwrap());
    let expect: Vec<f32> = x.iter().enumerate().map(|(i, x)| x * factors[i / 100]).collect();
    assert_eq!(bits(&out), bits(&expect));
}

#[test]
fn caps_and_probabilities_are_those_of_the_processor() {
    let Some(mut device) = device() else { return };
    let mut x: Vec<f32> = floats(1, 1000).iter().map(|x| x * 40.0).collect();
    x[..6].copy_from_slice(&[0.0, -0.0, 1e-9, -3e4, 3e4, -300.0]);
    let (mut capped, mut probable) = (x.clone(), x.clone());
    soft_cap(&Pool::new(1), &mut capped, 30.0);
    let out = changed(&mut device, &x, |step, x| step.soft_cap(x, 1000, 30.0).unwrap());
    assert_near("a soft cap", &out, &capped, TOLERANCE);
    assert!((out[2] - 1e-9).abs() < 1e-15, "small numbers keep their digits: {}", out[2]);
    sigmoid(&Pool::new(1), &mut probable);
    let out = changed(&mut device, &x, |step, x| step.sigmoid(x, 1000).unwrap());
    assert_near("a sigmoid", &out, &probable, TOLERANCE);
}

#[test]
fn rows_are_gathered_in_any_order() {
    let Some(mut device) = device() else { return };
    let x = floats(1, 9 * 70);
    let rows = [8u32, 0, 3, 3, 1];
    let (on_device, rows_there) = (upload(&device, &x), device.upload("rows", &rows).unwrap());
    let mut out = zeros(&device, 5 * 70);
    let mut step = device.step();
    step.gather(&on_device, &rows_there, [5, 70], &mut out).unwrap();
    step.submit().unwrap();
    let expect: Vec<f32> = rows.iter().flat_map(|&row| &x[row as usize * 70..][..70]).copied().collect();
    assert_eq!(device.read(&out).unwrap(), expect);
    let mut part = vec![7.0];
    device.read_into(&out, 69..72, &mut part).unwrap();
    assert_eq!(part, [&[7.0], &expect[69..72]].concat());
}

#[test]
fn the_largest_number_is_found_and_the_first_of_equals() {
    let Some(mut device) = device() else { return };
    let len = 3000;
    let mut x = floats(1, 7 * len);
    x[len..2 * len].fill(0.5);
    x[2 * len..3 * len].fill(-2.0);
    for (place, value) in [(3 * len + 2999, 3.0), (4 * len, 3.0), (5 * len + 256, 2.0), (5 * len + 255, 2.0)]
    {
        x[place] = value;
    }
    let first_largest = |row: &[f32]| {
        let best = (1..len).fold(0, |best, i| if row[i] > row[best] { i } else { best });
        best as u32
    };
    let expect: Vec<u32> = x.chunks_exact(len).map(first_largest).collect();
    assert_eq!(expect[1..6], [0, 0, 2999, 0, 255]);
    let (x, mut out) = (upload(&device, &x), device.zeros("places", 7).unwrap());
    let mut step = device.step();
    step.argmax(&x, [7, len], &mut out).unwrap();
    step.submit().unwrap();
    assert_eq!(device.read(&out).unwrap(), expect);
}

#[test]
fn what_is_no_number_is_never_the_largest() {
    let Some(mut device) = device() else { return };
    let (nan, least) = (f32::NAN, f32::NEG_INFINITY);
    let rows = [
        [nan, -1.0, nan, -0.5],
        [nan, nan, least, nan],
        [least, least, f32::MIN, least],
        [-0.0, 0.0, -1.0, nan],
        [1.0, f32::INFINITY, -nan, 2.0],
    ];
    let (x, mut out) = (upload(&device, &rows.concat()), device.zeros("places", rows.len()).unwrap());
    let mut step = device.step();
    step.argmax(&x, [rows.len(), 4], &mut out).unwrap();
    step.submit().unwrap();
    assert_eq!(device.read(&out).unwrap(), [3, NO_PLACE, 2, 0, 1]);
}
