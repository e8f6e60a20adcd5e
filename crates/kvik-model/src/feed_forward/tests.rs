//! Feed-forward layers loaded from files, against a plain f64 reference; and every row in a batch and alone.

use kvik_kernels::{WeightType, dequantize, quantize};
use kvik_text::files::TensorSource;
use kvik_text::files::bytes::FileBytes;
use kvik_text::files::gguf::Gguf;
use kvik_text::files::gguf::write::GgufWriter;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::layer_tensor::{Presence, is_stack};
use crate::loader::Loader;

/// Experts without optional parts.
pub(super) fn shape() -> ExpertsShape {
    ExpertsShape {
        count: 5,
        used: 2,
        d_ff: 64,
        activation: Activation::SwiGlu,
        biases: Presence::Absent,
        gating: Gating::Softmax,
        selection_bias: Presence::Absent,
        groups: None,
        normalised: false,
        scale: 1.0,
        weighted: Weighted::Output,
        output_scale: Presence::Absent,
        shared: None,
    }
}

/// A reproducible number in -1..1.
fn random(seed: u64, index: usize) -> f32 {
    let mut x = (seed << 32 ^ index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((x ^ x >> 31) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// A tensor as a file stores it, and its values.
#[derive(Clone)]
struct Tensor {
    name: &'static str,
    ty: WeightType,
    shape: [usize; 2],
    raw: Vec<u8>,
    values: Vec<f32>,
}

impl Tensor {
    fn new(name: &'static str, ty: WeightType, shape: [usize; 2], seed: u64) -> Tensor {
        let values: Vec<f32> = (0..shape[0] * shape[1]).map(|i| random(seed, i)).collect();
        let mut raw = vec![0; ty.row_bytes(values.len()).unwrap()];
        match ty {
            WeightType::Mxfp4 | WeightType::Q4K => {
                raw.iter_mut()
                    .enumerate()
                    .for_each(|(i, byte)| *byte = (random(seed, i) * 128.0) as i32 as u8);
                for block in raw.chunks_exact_mut(ty.block_bytes()) {
                    match ty {
                        WeightType::Mxfp4 => block[0] = 120 + block[0] % 4,
                        _ => block[..4].copy_from_slice(&[0, 0x10, 0, 0x14]),
                    }
                }
            }
            _ => quantize(ty, &values, &mut raw),
        }
        let mut tensor = Tensor { name, ty, shape, raw, values };
        dequantize(ty, &tensor.raw, &mut tensor.values);
        tensor
    }
}

/// All tensors of a layer, matrices except the router's of type `ty`; gate and up in two tensors.
fn tensors(shape: FeedForwardShape, d_model: usize, ty: WeightType, seed: u64) -> Vec<Tensor> {
    let all = shape.tensors(d_model).into_iter().enumerate();
    let wanted =
        all.filter(|(_, (name, .., presence))| *presence != Presence::Absent && !name.contains("gate_up"));
    let make = |(index, (name, rows, cols, _)): (usize, LayerTensor)| {
        let is_plain = [".bias", ".scale", "gate_inp", "norm"].iter().any(|part| name.contains(part));
        let ty = if is_plain { WeightType::F32 } else { ty };
        Tensor::new(name, ty, [rows, cols], seed << 8 | index as u64)
    };
    wanted.map(make).collect()
}

/// Loads a layer, which must take every tensor of the file.
fn load(shape: FeedForwardShape, tensors: &[Tensor]) -> Result<FeedForward, ModelError> {
    let mut writer = GgufWriter::new();
    for tensor in tensors {
        writer.tensor(&format!("blk.0.{}", tensor.name), tensor.ty, &tensor.shape, &tensor.raw);
    }
    let file = Gguf::from_bytes(FileBytes::Owned(writer.to_bytes())).unwrap();
    let source = TensorSource::from_gguf(file);
    let mut loader = Loader {
        tensors: &source,
        left: source.names().map(str::to_owned).collect(),
        norm_offset: 0.0,
        conversion: crate::Conversion::Stored,
        pool: &Pool::new(2),
        progress: &|_, _| {},
        done_bytes: 0,
        total_bytes: 0,
    };
    let loaded = shape.load(&mut LayerLoader { loader: &mut loader, layer: 0 })?;
    assert!(loader.left.is_empty(), "never read: {:?}", loader.left);
    Ok(loaded.expect("the shape is not absent"))
}

/// Adapters that add nothing, and report that.
struct Silent;

impl Adapt for Silent {
    fn is_silent(&self) -> bool {
        true
    }

    fn add(&mut self, _: &'static str, _: &[f32], _: &mut [f32]) {}
}

/// Adapters that record the calls: the matrix, and the lengths of its input and output.
#[derive(Default)]
struct Offered(Vec<(&'static str, usize, usize)>);

impl Adapt for Offered {
    fn is_silent(&self) -> bool {
        false
    }

    fn add(&mut self, name: &'static str, x: &[f32], out: &mut [f32]) {
        self.0.push((name, x.len(), out.len()));
    }
}

/// A layer's output, which is the same if active adapters add nothing.
fn forward(layer: &FeedForward, threads: usize, x: &[f32]) -> Vec<f32> {
    let (pool, mut inputs, mut buffers) = (Pool::new(threads), Activations::new(), Buffers::default());
    let [mut h, mut offered] = [x.to_vec(), x.to_vec()];
    layer.forward(&pool, (x, &mut h), &mut inputs, &mut buffers, &mut Silent);
    layer.forward(&pool, (x, &mut offered), &mut inputs, &mut buffers, &mut Offered::default());
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&h), bits(&offered));
    h
}

/// A layer in f64, from the values of its tensors.
struct Reference<'a>(&'a [Tensor]);

impl Reference<'_> {
    fn get(&self, name: &str) -> Option<&Tensor> {
        self.0.iter().find(|tensor| tensor.name == name)
    }

    /// The product with matrix `index` of a stack of `count`, with its bias.
    fn linear(&self, name: &str, (index, count): (usize, usize), x: &[f64]) -> Option<Vec<f64>> {
        let weights = self.get(&format!("{name}.weight"))?;
        let rows = weights.shape[0] / count;
        let bias = self.get(&format!("{name}.bias"));
        let row = |row: usize| {
            let w = &weights.values[(index * rows + row) * x.len()..][..x.len()];
            let product: f64 = w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
            product + bias.map_or(0.0, |bias| f64::from(bias.values[index * rows + row]))
        };
        Some((0..rows).map(row).collect())
    }

    /// Down, applied to the activation of gate and up; their names end in `suffix`.
    fn dense(
        &self,
        (activation, sparsity): (Activation, Option<f64>),
        suffix: &str,
        which: (usize, usize),
        x: &[f64],
    ) -> Vec<f64> {
        let up = self.linear(&format!("ffn_up{suffix}"), which, x).unwrap();
        let hidden: Vec<f64> = match self.linear(&format!("ffn_gate{suffix}"), which, x) {
            Some(mut gate) => {
                sparsity.inspect(|deviations| keep_outliers(&mut gate, *deviations));
                gate.iter().zip(&up).map(|(gate, up)| activated(activation, *gate, *up)).collect()
            }
            None => up.iter().map(|up| activated(activation, 0.0, *up)).collect(),
        };
        self.linear(&format!("ffn_down{suffix}"), which, &hidden).unwrap()
    }

    /// Both between their norms, from a row of the stream, which the dense layer's own norm leaves unchanged.
    fn mixed(&self, shape: &MixedShape, x: &[f64]) -> Vec<f64> {
        let norm = |x: &[f64], name: &str| self.norm(x, name);
        let dense = self.dense((shape.dense.activation, None), "", (0, 1), x);
        let root = (x.len() as f64).sqrt();
        let routed: Vec<f64> = norm(x, "ffn_gate_inp.scale").iter().map(|x| x / root).collect();
        let chosen = self.chosen(&shape.experts, &routed);
        let experts = self.experts(&shape.experts, chosen, &norm(x, "pre_ffw_norm_2.weight"));
        let halves = (norm(&dense, "post_ffw_norm_1.weight"), norm(&experts, "post_ffw_norm_2.weight"));
        halves.0.iter().zip(&halves.1).map(|(dense, experts)| dense + experts).collect()
    }

    fn norm(&self, x: &[f64], name: &str) -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let weights = &self.get(name).unwrap().values;
        x.iter().zip(weights).map(|(x, weight)| x / (mean + 1e-5).sqrt() * f64::from(*weight)).collect()
    }

    fn experts(&self, shape: &ExpertsShape, chosen: Vec<(usize, f64)>, x: &[f64]) -> Vec<f64> {
        let mut out = vec![0.0; x.len()];
        for (expert, weight) in chosen {
            let before = if shape.weighted == Weighted::Input { weight } else { 1.0 };
            let x: Vec<f64> = x.iter().map(|x| x * before).collect();
            let output = self.dense((shape.activation, None), "_exps", (expert, shape.count), &x);
            let scale = self.get("ffn_down_exps.scale").map_or(1.0, |scale| f64::from(scale.values[expert]));
            out.iter_mut().zip(output).for_each(|(out, output)| *out += output * scale * weight / before);
        }
        if shape.shared.is_some() {
            let gate = self.linear("ffn_gate_inp_shexp", (0, 1), x);
            let weight = gate.map_or(1.0, |gate| logistic(gate[0]));
            let output = self.dense((shape.activation, None), "_shexp", (0, 1), x);
            out.iter_mut().zip(output).for_each(|(out, output)| *out += output * weight);
        }
        out
    }

    fn chosen(&self, shape: &ExpertsShape, x: &[f64]) -> Vec<(usize, f64)> {
        let logits = self.linear("ffn_gate_inp", (0, 1), x).unwrap();
        let probabilities = match shape.gating {
            Gating::Softmax => softened(&logits),
            Gating::Sigmoid => logits.iter().map(|x| logistic(*x)).collect(),
            _ => logits,
        };
        let mut scores = probabilities.clone();
        if let Some(bias) = self.get("exp_probs_b.bias") {
            scores.iter_mut().zip(&bias.values).for_each(|(score, bias)| *score += f64::from(*bias));
        }
        if let Some(groups) = shape.groups {
            let members = shape.count / groups.count;
            let of_group = |group: &[f64]| -> f64 {
                order(group)[..groups.best].iter().map(|&expert| group[expert]).sum()
            };
            let of_groups: Vec<f64> = scores.chunks(members).map(of_group).collect();
            for group in order(&of_groups).into_iter().skip(groups.used) {
                scores[group * members..(group + 1) * members].fill(f64::NEG_INFINITY);
            }
        }
        let experts = order(&scores)[..shape.used].to_vec();
        let mut weights: Vec<f64> = experts.iter().map(|expert| probabilities[*expert]).collect();
        match shape.gating {
            Gating::SoftmaxOfChosen => weights = softened(&weights),
            Gating::SigmoidOfChosen => weights.iter_mut().for_each(|x| *x = logistic(*x)),
            _ => {}
        }
        let sum = if shape.normalised { weights.iter().sum() } else { 1.0 };
        experts.into_iter().zip(weights).map(|(e, w)| (e, w / sum * f64::from(shape.scale))).collect()
    }
}

fn keep_outliers(gate: &mut [f64], deviations: f64) {
    let (n, mean) = (gate.len() as f64, gate.iter().sum::<f64>() / gate.len() as f64);
    let variance = gate.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
    gate.iter_mut().for_each(|x| *x = (*x - mean - deviations * variance.sqrt()).max(0.0));
}

fn activated(activation: Activation, gate: f64, up: f64) -> f64 {
    let gelu =
        |x: f64| x / 2.0 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh());
    match activation {
        Activation::SwiGlu => gate * logistic(gate) * up,
        Activation::GeGlu => gelu(gate) * up,
        Activation::SwiGluOai => {
            let gate = gate.min(7.0);
            gate * logistic(1.702 * gate) * (up.clamp(-7.0, 7.0) + 1.0)
        }
        Activation::Gelu => gelu(up),
        Activation::ReluSquared => up.max(0.0).powi(2),
    }
}

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn softened(x: &[f64]) -> Vec<f64> {
    let sum: f64 = x.iter().map(|x| x.exp()).sum();
    x.iter().map(|x| x.exp() / sum).collect()
}

/// Indices in descending order of the scores.
fn order(scores: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    order
}

/// Compares a layer of f32 weights with its reference.
fn check(shape: FeedForwardShape, seed: u64) {
    let (d, n) = (96, 13);
    let tensors = tensors(shape, d, WeightType::F32, seed);
    let layer = load(shape, &tensors).unwrap();
    let x: Vec<f32> = (0..n * d).map(|i| random(seed ^ 77, i) * 0.5).collect();
    let reference = Reference(&tensors);
    for (row, (x, out)) in x.chunks(d).zip(forward(&layer, 2, &x).chunks(d)).enumerate() {
        let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let expect = match shape {
            FeedForwardShape::Dense(dense) => {
                reference.dense((dense.activation, dense.sparsity.map(f64::from)), "", (0, 1), &x)
            }
            FeedForwardShape::Experts(experts) => {
                reference.experts(&experts, reference.chosen(&experts, &x), &x)
            }
            FeedForwardShape::Mixed(mixed) => reference.mixed(&mixed, &x),
            FeedForwardShape::Absent => unreachable!("no shape of these tests"),
        };
        let norm = expect.iter().map(|x| x * x).sum::<f64>().sqrt();
        let error = out.iter().zip(&expect).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum::<f64>().sqrt();
        assert!(error <= 5e-6 * norm, "{shape:?} row {row}: off by {error} of {norm}");
    }
}

const ACTIVATIONS: [Activation; 5] =
    [Activation::SwiGlu, Activation::GeGlu, Activation::SwiGluOai, Activation::Gelu, Activation::ReluSquared];

#[test]
fn dense_layers_are_what_they_are_in_f64() {
    for activation in ACTIVATIONS {
        for biases in [Presence::Absent, Presence::Required] {
            let plain = DenseShape { biases, ..DenseShape::plain(160, activation) };
            check(FeedForwardShape::Dense(plain), 3);
            if activation.is_gated() {
                check(FeedForwardShape::Dense(DenseShape { sparsity: Some(0.7), ..plain }), 4);
            }
        }
    }
}

#[test]
fn experts_are_what_they_are_in_f64() {
    let gated = Some(SharedShape { d_ff: 48, gate: Presence::Required });
    let plain = Some(SharedShape { d_ff: 48, gate: Presence::Absent });
    let in_groups = |best| ExpertsShape {
        count: 12,
        used: 4,
        groups: Some(ExpertGroups { count: 4, used: 2, best }),
        ..shape()
    };
    let (required, normalised) = (Presence::Required, true);
    let shapes = [
        // Qwen3-MoE, Mixtral.
        ExpertsShape { count: 16, used: 5, normalised, ..shape() },
        // Qwen2-MoE; its shared expert has a gate.
        ExpertsShape { shared: gated, ..shape() },
        // gpt-oss.
        ExpertsShape {
            activation: Activation::SwiGluOai,
            gating: Gating::SoftmaxOfChosen,
            biases: required,
            ..shape()
        },
        // DeepSeek V3 and GLM.
        ExpertsShape {
            gating: Gating::Sigmoid,
            selection_bias: required,
            normalised,
            scale: 2.5,
            shared: plain,
            ..in_groups(2)
        },
        // Llama 4.
        ExpertsShape {
            used: 1,
            gating: Gating::SigmoidOfChosen,
            weighted: Weighted::Input,
            shared: plain,
            ..shape()
        },
        // Nemotron.
        ExpertsShape {
            activation: Activation::ReluSquared,
            gating: Gating::Sigmoid,
            shared: plain,
            ..shape()
        },
        ExpertsShape {
            activation: Activation::GeGlu,
            weighted: Weighted::Input,
            biases: required,
            ..shape()
        },
        // DeepSeek V2.
        ExpertsShape { scale: 16.0, shared: plain, ..in_groups(1) },
    ];
    for (seed, shape) in shapes.into_iter().enumerate() {
        check(FeedForwardShape::Experts(shape), seed as u64);
    }
}

#[test]
fn a_dense_layer_beside_experts_is_what_it_is_in_f64() {
    let activation = Activation::GeGlu;
    let experts = ExpertsShape {
        count: 16,
        used: 5,
        activation,
        normalised: true,
        output_scale: Presence::Required,
        ..shape()
    };
    check(
        FeedForwardShape::Mixed(MixedShape {
            dense: DenseShape::plain(160, activation),
            experts,
            norm_eps: 1e-5,
        }),
        8,
    );
}

#[test]
fn gate_and_up_may_stand_in_one_tensor() {
    let shape = FeedForwardShape::Experts(ExpertsShape { biases: Presence::Required, ..shape() });
    let split = tensors(shape, 64, WeightType::Q8_0, 5);
    let get = |name: &str| split.iter().find(|tensor| tensor.name == name).unwrap();
    let (gate, up) = (get("ffn_gate_exps.weight"), get("ffn_up_exps.weight"));
    let bytes = gate.raw.len() / 5;
    let raw = gate.raw.chunks(bytes).zip(up.raw.chunks(bytes)).flat_map(|(gate, up)| [gate, up].concat());
    let both = Tensor {
        name: "ffn_gate_up_exps.weight",
        shape: [2 * gate.shape[0], 64],
        raw: raw.collect(),
        ..gate.clone()
    };
    let is_half = |name: &str| name == gate.name || name == up.name;
    let mut fused: Vec<Tensor> = split.iter().filter(|tensor| !is_half(tensor.name)).cloned().collect();
    fused.push(both.clone());
    let x: Vec<f32> = (0..7 * 64).map(|i| random(9, i)).collect();
    let expect = forward(&load(shape, &split).unwrap(), 1, &x);
    assert_eq!(forward(&load(shape, &fused).unwrap(), 1, &x), expect);

    let refused = |tensors: &[Tensor]| load(shape, tensors).err().unwrap().to_string();
    let twice = refused(&[split.as_slice(), std::slice::from_ref(&both)].concat());
    assert!(twice.contains("`ffn_gate_up_exps.weight` and as `ffn_gate_exps.weight`"), "{twice}");
    let without: Vec<Tensor> = split.iter().filter(|tensor| tensor.name != up.name).cloned().collect();
    assert!(refused(&without).contains("no tensor `blk.0.ffn_up_exps.weight`"), "{}", refused(&without));
}

#[test]
fn numbers_that_contradict_each_other_are_refused() {
    let refused = |bad: ExpertsShape| {
        let all = tensors(FeedForwardShape::Experts(shape()), 64, WeightType::F32, 1);
        load(FeedForwardShape::Experts(bad), &all).err().map(|error| error.to_string()).unwrap_or_default()
    };
    let groups = |count, used| Some(ExpertGroups { count, used, best: 2 });
    assert!(refused(ExpertsShape { count: 0, ..shape() }).contains("number of experts is 0"));
    assert!(refused(ExpertsShape { count: 9999, ..shape() }).contains("1 to 1024"));
    assert!(refused(ExpertsShape { used: 6, ..shape() }).contains("goes to is 6, and 1 to 5"));
    assert!(refused(ExpertsShape { used: 0, ..shape() }).contains("goes to is 0"));
    assert!(refused(ExpertsShape { groups: groups(2, 1), ..shape() }).contains("a divisor of 5"));
    assert!(refused(ExpertsShape { groups: groups(5, 6), ..shape() }).contains("1 to 5"));
    assert!(refused(ExpertsShape { groups: groups(5, 1), ..shape() }).contains("with 2 experts in 1 groups"));
    assert!(refused(ExpertsShape { d_ff: 0, ..shape() }).contains("length of experts is 0"));
    assert!(refused(ExpertsShape { scale: f32::NAN, ..shape() }).contains("NaN"));
    assert_eq!(refused(shape()), "");
}

#[test]
fn what_adapters_may_change_is_offered_to_them_and_experts_are_not() {
    let shared = Some(SharedShape { d_ff: 64, gate: Presence::Required });
    let shape = FeedForwardShape::Experts(ExpertsShape { shared, ..shape() });
    let layer = load(shape, &tensors(shape, 64, WeightType::F32, 4)).unwrap();
    let (mut inputs, mut buffers, mut h) = (Activations::new(), Buffers::default(), vec![0.5; 3 * 64]);
    let mut offered = Offered::default();
    let stream = h.clone();
    layer.forward(&Pool::new(1), (&stream, &mut h), &mut inputs, &mut buffers, &mut offered);
    let mut offered: Vec<_> = offered.0.iter().map(|(name, x, out)| (*name, x / 3, out / 3)).collect();
    let mut expected: Vec<(&str, usize, usize)> = Vec::new();
    for (name, rows, cols, presence) in shape.tensors(64) {
        if name.ends_with(".weight") && presence == Presence::Required && !is_stack(name) {
            expected.push((name, cols, rows));
        }
    }
    offered.sort_unstable();
    expected.sort_unstable();
    assert_eq!(offered, expected);
    assert_eq!(offered.len(), 5);
}

fn any_experts() -> impl Strategy<Value = ExpertsShape> {
    let gatings = vec![Gating::Softmax, Gating::SoftmaxOfChosen, Gating::Sigmoid, Gating::SigmoidOfChosen];
    let presence = || select(vec![Presence::Absent, Presence::Required]);
    let shared = prop::option::of(presence().prop_map(|gate| SharedShape { d_ff: 256, gate }));
    let weighted = select(vec![Weighted::Output, Weighted::Input]);
    let numbers = (1..7usize, 1..5usize, any::<bool>(), any::<bool>());
    (numbers, select(ACTIVATIONS.to_vec()), select(gatings), [presence(), presence()], shared, weighted)
        .prop_map(
            |(
                (half, used, normalised, in_groups),
                activation,
                gating,
                [biases, selection_bias],
                shared,
                weighted,
            )| {
                let (groups_used, best) = (half.div_ceil(2), 1 + used % 2);
                let groups = in_groups.then_some(ExpertGroups { count: half, used: groups_used, best });
                let used = used.min(groups.map_or(2 * half, |groups| 2 * groups.used));
                ExpertsShape {
                    count: 2 * half,
                    used,
                    d_ff: 256,
                    activation,
                    biases,
                    gating,
                    selection_bias,
                    groups,
                    normalised,
                    scale: 1.5,
                    weighted,
                    output_scale: Presence::Absent,
                    shared,
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn a_row_does_not_depend_on_its_company(
        shape in any_experts(),
        ty in select(vec![
            WeightType::F32, WeightType::Bf16, WeightType::Q8_0, WeightType::Q4K, WeightType::Mxfp4,
        ]),
        n in 1..40usize,
        seed in 0..1000u64,
    ) {
        let shape = FeedForwardShape::Experts(shape);
        let layer = load(shape, &tensors(shape, 256, ty, seed)).unwrap();
        let x: Vec<f32> = (0..n * 256).map(|i| random(seed ^ 55, i)).collect();
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let together = forward(&layer, 2, &x);
        prop_assert!(together.iter().all(|x| x.is_finite()));
        // The same buffers again, after a batch with other groups.
        let (mut inputs, mut buffers) = (Activations::new(), Buffers::default());
        for rows in [n, 1, n.div_ceil(2)] {
            let mut h = x[..rows * 256].to_vec();
            layer.forward(&Pool::new(1), (&x[..rows * 256], &mut h), &mut inputs, &mut buffers, &mut Silent);
            prop_assert_eq!(bits(&h), bits(&together[..rows * 256]));
        }
        for (x, together) in x.chunks(256).zip(together.chunks(256)) {
            prop_assert_eq!(bits(&forward(&layer, 1, x)), bits(together));
        }
    }
}
