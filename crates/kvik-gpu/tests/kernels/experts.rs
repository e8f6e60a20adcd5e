//! Mixtures of experts beside what they mean, and beside themselves in other batches.

use kvik_gpu::{Device, DeviceChoices, DeviceMatrix, DeviceStack, Gating, Routing, Weighted};
use kvik_kernels::WeightType;

use crate::matmul::{TYPES, blocks};
use crate::{assert_near, bits, device, floats, upload, zeros};

const GATINGS: [Gating; 4] =
    [Gating::Softmax, Gating::SoftmaxOfChosen, Gating::Sigmoid, Gating::SigmoidOfChosen];

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn softmax(scores: &[f64]) -> Vec<f64> {
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|score| (score - most).exp()).sum();
    scores.iter().map(|score| (score - most).exp() / sum).collect()
}

/// What a row chooses, and the weights.
fn expected(routing: &Routing, scores: &[f32], bias: Option<&[f32]>) -> (Vec<u32>, Vec<f32>) {
    let scores: Vec<f64> = scores.iter().map(|&score| f64::from(score)).collect();
    let chances = match routing.gating {
        Gating::Softmax => softmax(&scores),
        Gating::Sigmoid => scores.iter().copied().map(sigmoid).collect(),
        Gating::SoftmaxOfChosen | Gating::SigmoidOfChosen => scores,
    };
    let by =
        |expert: u32| chances[expert as usize] + bias.map_or(0.0, |bias| f64::from(bias[expert as usize]));
    let mut experts: Vec<u32> = (0..routing.count as u32).collect();
    experts.sort_by(|&a, &b| by(b).total_cmp(&by(a)));
    experts.truncate(routing.used);
    let mut weights: Vec<f64> = experts.iter().map(|&expert| chances[expert as usize]).collect();
    match routing.gating {
        Gating::SoftmaxOfChosen => weights = softmax(&weights),
        Gating::SigmoidOfChosen => weights.iter_mut().for_each(|weight| *weight = sigmoid(*weight)),
        Gating::Softmax | Gating::Sigmoid => {}
    }
    let sum = if routing.normalised { weights.iter().sum::<f64>().max(6.103_515_6e-5) } else { 1.0 };
    let scaled = weights.iter().map(|weight| (weight / sum * f64::from(routing.scale)) as f32);
    (experts, scaled.collect())
}

/// Rows that have chosen on the device.
struct Chosen {
    choices: DeviceChoices,
    experts: Vec<u32>,
    weights: Vec<f32>,
}

/// Chooses, and reads what was chosen by what is made of it.
fn choose(device: &mut Device, routing: &Routing, scores: &[f32], bias: Option<&[f32]>) -> Chosen {
    let (n, used) = (scores.len() / routing.count, routing.used);
    let mut choices = DeviceChoices::new(device, n, used).unwrap();
    let numbers: Vec<f32> = (0..routing.count).map(|expert| expert as f32).collect();
    let [scores, numbers, ones] = [scores, &numbers, &vec![1.0; n]].map(|values| upload(device, values));
    let bias = bias.map(|bias| upload(device, bias));
    let [mut experts, mut weights] = [(); 2].map(|()| zeros(device, n * used));
    let mut step = device.step();
    step.route(routing, (&scores, bias.as_ref()), n, &mut choices).unwrap();
    step.add_chosen(&mut experts, (&choices, n * used), &numbers, 1).unwrap();
    step.spread(&ones, &choices, [n, used, 1], &mut weights).unwrap();
    step.submit().unwrap();
    let experts = device.read(&experts).unwrap().iter().map(|&expert| expert as u32).collect();
    Chosen { choices, experts, weights: device.read(&weights).unwrap() }
}

fn routing(count: usize, used: usize) -> Routing {
    Routing { count, used, gating: Gating::Softmax, normalised: false, scale: 1.0 }
}

#[test]
fn rows_choose_and_weigh_as_the_gating_says() {
    let Some(mut device) = device() else { return };
    for &(count, used) in
        kvik_testing::effort(&[(6, 2), (130, 1)][..], &[(6, 2), (64, 8), (130, 1), (300, 300)])
    {
        let scores: Vec<f32> = floats(1, 7 * count).iter().map(|x| x * 6.0).collect();
        for gating in GATINGS {
            for normalised in [false, true] {
                let routing = Routing { gating, normalised, scale: 1.7, ..routing(count, used) };
                for bias in [None, Some(floats(2, count))] {
                    let bias = bias.as_deref();
                    let found = choose(&mut device, &routing, &scores, bias);
                    let rows = scores.chunks_exact(count).map(|scores| expected(&routing, scores, bias));
                    let (experts, weights): (Vec<_>, Vec<_>) = rows.unzip();
                    assert_eq!(found.experts, experts.concat(), "{routing:?}");
                    assert_near(&format!("{routing:?}"), &found.weights, &weights.concat(), 2e-6);
                    let alone = choose(&mut device, &routing, &scores[count..2 * count], bias);
                    assert_eq!(bits(&alone.weights), bits(&found.weights[used..2 * used]), "{routing:?}");
                }
            }
        }
    }
}

#[test]
fn equal_experts_stand_in_their_order_and_each_is_chosen_once() {
    let Some(mut device) = device() else { return };
    let check = |device: &mut Device, scores: [f32; 6], experts: [u32; 3]| {
        let found =
            choose(device, &Routing { gating: Gating::SigmoidOfChosen, ..routing(6, 3) }, &scores, None);
        assert_eq!(found.experts, experts, "{scores:?}");
    };
    check(&mut device, [0.0; 6], [0, 1, 2]);
    check(&mut device, [1.0, 2.0, 1.0, 2.0, 1.0, 2.0], [1, 3, 5]);
    check(&mut device, [1.0, 0.0, 1.0, 2.0, 1.0, -1.0], [3, 0, 2]);
    check(&mut device, [f32::NAN; 6], [0, 1, 2]);
    check(&mut device, [f32::NAN, -5.0, f32::NAN, f32::NEG_INFINITY, -7.0, f32::NAN], [1, 4, 0]);
}

#[test]
fn a_sum_of_nothing_divides_by_the_least() {
    let Some(mut device) = device() else { return };
    let routing = Routing { gating: Gating::Sigmoid, normalised: true, ..routing(2, 1) };
    let weight = choose(&mut device, &routing, &[-30.0, -40.0], None).weights[0];
    let expect = sigmoid(-30.0) / 6.103515625e-5;
    assert!((f64::from(weight) / expect - 1.0).abs() < 1e-5, "{weight}, not {expect}");
}

/// The matrices of some experts, together and each by itself.
struct Stacked {
    stack: DeviceStack,
    matrices: Vec<DeviceMatrix>,
}

impl Stacked {
    fn new(device: &Device, ty: WeightType, [count, rows, cols]: [usize; 3]) -> Stacked {
        let mut stack = DeviceStack::new(device, "a stack", ty, [count, rows, cols]).unwrap();
        let matrix = |expert: usize| {
            let raw = blocks(ty, rows * cols, 100 + expert as u64);
            stack.write(device, expert, &raw).unwrap();
            DeviceMatrix::upload(device, "one of them", ty, [rows, cols], &raw).unwrap()
        };
        let matrices = (0..count).map(matrix).collect();
        Stacked { stack, matrices }
    }

    /// The products of what rows have chosen; `x` has a row for each choice or for each row.
    fn multiply(&self, device: &mut Device, chosen: &Chosen, x: &[f32]) -> Vec<f32> {
        let len = chosen.experts.len();
        let sharing = len * self.stack.cols() / x.len();
        let (x, mut out) = (upload(device, x), zeros(device, len * self.stack.rows()));
        let mut step = device.step();
        step.matmul_chosen(&self.stack, (&chosen.choices, len), (&x, sharing), &mut out).unwrap();
        step.submit().unwrap();
        device.read(&out).unwrap()
    }

    /// The same by the matrix of each choice.
    fn one_by_one(&self, device: &mut Device, chosen: &Chosen, x: &[f32]) -> Vec<f32> {
        let (cols, rows) = (self.stack.cols(), self.stack.rows());
        let sharing = chosen.experts.len() * cols / x.len();
        let product = |(choice, &expert): (usize, &u32)| {
            let x = &x[choice / sharing * cols..][..cols];
            let (x, mut out) = (upload(device, x), zeros(device, rows));
            let mut step = device.step();
            step.matmul(&self.matrices[expert as usize], &x, 1, &mut out).unwrap();
            step.submit().unwrap();
            device.read(&out).unwrap()
        };
        chosen.experts.iter().enumerate().flat_map(product).collect()
    }
}

#[test]
fn products_of_experts_are_those_of_their_matrices_to_the_bit_in_any_batch() {
    let Some(mut device) = device() else { return };
    let routing = routing(5, 2);
    for ty in TYPES.into_iter().step_by(kvik_testing::effort(2, 1)) {
        // Matrices that do not end with a word, and rows that fill no tile.
        let stacked = Stacked::new(&device, ty, [5, 13, 256]);
        // Of few rows, each choice is a batch, of more there are batches of four and of eight.
        for n in [1, 6, 23] {
            let scores = floats(n as u64, n * routing.count);
            let chosen = choose(&mut device, &routing, &scores, None);
            for x in [floats(5, n * 256), floats(6, n * routing.used * 256)] {
                let found = stacked.multiply(&mut device, &chosen, &x);
                let expect = stacked.one_by_one(&mut device, &chosen, &x);
                assert_eq!(bits(&found), bits(&expect), "{} {n}", ty.name());
            }
        }
    }
}

#[test]
fn experts_beyond_what_a_kernel_binds_are_in_the_next_band() {
    let Some(mut device) = device() else { return };
    let (rows, cols) = (8, 1 << 20);
    // Three and a half fit.
    let count = device.info().binding_bytes_max as usize / (rows * cols * 4) + 2;
    if count > 32 {
        return kvik_testing::skip("the device binds more than a test has");
    }
    let mut stack = DeviceStack::new(&device, "a stack", WeightType::F32, [count, rows, cols]).unwrap();
    for expert in 0..count {
        let weight = (expert + 1) as f32 / cols as f32;
        stack.write(&device, expert, &weight.to_le_bytes().repeat(rows * cols)).unwrap();
    }
    let scores: Vec<f32> = (0..count).map(|expert| expert as f32).collect();
    let chosen = choose(&mut device, &routing(count, count), &scores, None);
    let (x, mut out) = (upload(&device, &vec![1.0; cols]), zeros(&device, count * rows));
    let mut step = device.step();
    step.matmul_chosen(&stack, (&chosen.choices, count), (&x, count), &mut out).unwrap();
    step.submit().unwrap();
    let expect: Vec<f32> = (0..count).rev().flat_map(|expert| vec![(expert + 1) as f32; rows]).collect();
    assert_near("a stack", &device.read(&out).unwrap(), &expect, 1e-5);
}

#[test]
fn biases_are_those_of_the_chosen_and_outputs_are_added_in_order() {
    let Some(mut device) = device() else { return };
    let (n, d, routing) = (9, 70, routing(6, 3));
    let Routing { count, used, .. } = routing;
    let chosen = choose(&mut device, &routing, &floats(1, n * count), None);
    let (x, bias) = (floats(2, n * used * d), floats(3, count * d));
    let bias_there = upload(&device, &bias);
    let (mut there, mut weighted, mut plain) =
        (upload(&device, &x), zeros(&device, n * d), zeros(&device, n * d));
    let (choices, sizes) = (&chosen.choices, [n, used, d]);
    let mut step = device.step();
    step.add_chosen(&mut there, (choices, n * used), &bias_there, d).unwrap();
    step.combine(&there, (choices, Weighted::Output), sizes, &mut weighted).unwrap();
    step.combine(&there, (choices, Weighted::Input), sizes, &mut plain).unwrap();
    step.submit().unwrap();
    let biased = |i: usize| x[i] + bias[chosen.experts[i / d] as usize * d + i % d];
    let biased: Vec<f32> = (0..x.len()).map(biased).collect();
    assert_eq!(bits(&device.read(&there).unwrap()), bits(&biased));
    let sum = |i: usize, weight: &dyn Fn(usize) -> f32| {
        let of_row = (i / d * used)..(i / d + 1) * used;
        of_row.fold(0.0_f32, |sum, choice| biased[choice * d + i % d].mul_add(weight(choice), sum))
    };
    let expect = |weight: &dyn Fn(usize) -> f32| (0..n * d).map(|i| sum(i, weight)).collect::<Vec<_>>();
    let by_weight = expect(&|choice| chosen.weights[choice]);
    assert_near("weighted outputs", &device.read(&weighted).unwrap(), &by_weight, 2e-6);
    assert_near("outputs", &device.read(&plain).unwrap(), &expect(&|_| 1.0), 2e-6);
}
