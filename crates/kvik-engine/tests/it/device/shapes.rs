//! Small models of every architecture: their logits are those of the processor, or they are refused with the reason.

use kvik_cache::{BlockId, Token};
use kvik_kernels::{KvFormat, WeightType};
use kvik_model::ModelError;
use kvik_model::device::{DeviceError, DeviceModel};
use kvik_model::load::LoadedModel;
use kvik_text::files::bytes::FileBytes;

use super::{device_model, has_device, logits, on_device, on_processor, opened, rows};
use crate::edited::Edited;
use crate::peer::{architectures, golden_model};

/// Rows of the prompt: more than windows have, and positions beyond the first interval of temperatures.
const ROWS: usize = 75;
/// A prompt is longer than these.
const WINDOW: usize = 24;
/// Blocks of the prompt, not in order, so that nothing works by chance.
const TABLE: [BlockId; 5] = [BlockId(2), BlockId(4), BlockId(0), BlockId(1), BlockId(3)];

/// Models that the device must run, by how their names begin.
const RUN: [&str; 19] = [
    "arch-deepseek",
    "arch-gemma2",
    "arch-gemma3",
    "arch-glm4",
    "arch-glm4moe",
    "arch-gpt-oss",
    "arch-granite",
    "arch-granitemoe",
    "arch-llama-experts",
    "arch-llama-gqa",
    "arch-llama4",
    "arch-mistral3",
    "arch-olmoe",
    "arch-phi3",
    "arch-qwen2",
    "arch-qwen2moe",
    "arch-qwen3",
    "arch-qwen3moe",
    "arch-smollm3",
];

/// Models that it refuses, and what it says.
const REFUSED: [(&str, &str); 8] = [
    ("arch-deepseek2", "latent attention"),
    ("arch-gemma3n", "around the residual stream"),
    ("arch-gemma4", "normed values"),
    ("arch-gemma4-shared", "around the residual stream"),
    ("arch-lfm2", "keep a state"),
    ("arch-nemotron_h", "keep a state"),
    ("arch-qwen3next", "keep a state"),
    // Its experts have 28 columns, and kernels work on eight together.
    ("arch-qwen2moe-old", "64 x 28 numbers"),
];

/// A golden model. Windows and intervals that no prompt here would leave are shorter than the file says.
pub(crate) fn within_reach(name: &str) -> LoadedModel {
    let mut loaded = opened(&golden_model(name));
    let extras = &mut loaded.config.extras;
    if let Some(window) = &mut extras.window {
        window.positions = window.positions.min(WINDOW);
    }
    if let Some(temperature) = &mut extras.temperature {
        temperature.interval = temperature.interval.min(WINDOW);
    }
    loaded
}

pub(crate) fn tokens(vocab: usize, count: usize, step: usize) -> Vec<Token> {
    (0..count).map(|i| (i * step % vocab) as Token).collect()
}

/// What the device says against a model; `None` if it runs it.
fn refusal(name: &str) -> Option<String> {
    let loaded = within_reach(name);
    let checked = DeviceModel::check(&loaded.config).map_err(ModelError::from);
    match checked.and_then(|()| device_model(loaded)) {
        Ok(_) => None,
        Err(ModelError::Device(error @ DeviceError::Unsupported { .. })) => Some(error.to_string()),
        Err(error) => panic!("{name}: {error}"),
    }
}

/// Formats of keys and values, or one of them, and how far logits may be from those of the processor.
pub(crate) fn formats() -> impl Iterator<Item = (KvFormat, f32)> {
    [(KvFormat::F16, 2e-3), (KvFormat::Q8, 4e-2)].into_iter().take(kvik_testing::effort(1, 2))
}

/// Fails unless the logits of a prompt are those of the processor.
fn check(name: &str, open: impl Fn() -> LoadedModel) {
    let vocab = open().config.vocab;
    let rows = rows(0, &tokens(vocab, ROWS, 7), 0, ROWS - 5);
    for (format, tolerance) in formats() {
        let found = logits(&mut on_device(open(), format, TABLE.len()), &rows, &[&TABLE]);
        let expected = logits(&mut on_processor(open(), format, TABLE.len()), &rows, &[&TABLE]);
        assert_eq!(found.len(), 5 * vocab, "{name}");
        let largest = expected.iter().fold(1.0_f32, |largest, logit| largest.max(logit.abs()));
        let apart = found.iter().zip(&expected).map(|(a, b)| (a - b).abs() / largest);
        let apart = kvik_testing::largest(apart);
        assert!(apart <= tolerance, "{name} {format}: {apart}");
    }
}

#[test]
fn models_of_every_architecture_compute_what_the_processor_does_or_are_refused() {
    if !has_device() {
        return;
    }
    let (mut runs, mut refused) = (Vec::new(), Vec::new());
    for name in architectures() {
        match refusal(&name) {
            Some(reason) => refused.push((name, reason)),
            None => {
                if runs.len().is_multiple_of(kvik_testing::effort(3, 1)) {
                    check(&name, || within_reach(&name));
                }
                runs.push(name);
            }
        }
    }
    println!("{} run: {}\n{refused:#?}", runs.len(), runs.join(", "));
    for name in RUN {
        assert!(runs.iter().any(|run| run.starts_with(name)), "{name} runs");
    }
    for (name, reason) in REFUSED {
        let said = refused.iter().find(|(refused, _)| refused == name).map(|(_, said)| said);
        assert!(
            said.is_some_and(|said| said.contains(reason) && said.contains("processor")),
            "{name}: {said:?}"
        );
    }
}

/// gpt-oss as it is published: its experts in MXFP4.
#[test]
fn experts_in_mxfp4_compute_what_the_processor_does() {
    if !has_device() {
        return;
    }
    let mut file = Edited::read(&golden_model("arch-gpt-oss"));
    let stacks = file.tensors.iter_mut().filter(|tensor| tensor.name.ends_with("_exps.weight"));
    let mut count = 0;
    for (seed, tensor) in (0u64..).zip(stacks) {
        let blocks = tensor.dims.iter().product::<u64>() / 32;
        let byte = |i: u64| match i % 17 {
            // About as large as what was there.
            0 => 124,
            _ => kvik_testing::mix(seed << 32 | i) as u8,
        };
        tensor.data = (0..blocks * 17).map(byte).collect();
        tensor.type_id = WeightType::Mxfp4.ggml().unwrap();
        count += 1;
    }
    assert_eq!(count, 6, "gate, up and down of two layers");
    let bytes = file.bytes();
    check("gpt-oss in MXFP4", || {
        let mut loaded = LoadedModel::from_bytes(FileBytes::Owned(bytes.clone())).unwrap();
        loaded.config.extras.window.as_mut().unwrap().positions = WINDOW;
        loaded
    });
}

/// Gate and up of each expert in one tensor, as checkpoints of several families have them.
#[test]
fn experts_with_gate_and_up_in_one_tensor_compute_the_same() {
    if !has_device() {
        return;
    }
    let path = golden_model("arch-qwen3moe");
    let mut file = Edited::read(&path);
    let gates: Vec<usize> =
        (0..file.tensors.len()).filter(|&i| file.tensors[i].name.contains("gate_exps")).collect();
    assert_eq!(gates.len(), 2, "one for each layer");
    for &gate in &gates {
        let up = file.tensors[gate].name.replace("gate_exps", "up_exps");
        let up = file.tensors.iter().position(|tensor| tensor.name == up).unwrap();
        let expert = file.tensors[gate].dims[..2].iter().product::<u64>() as usize * 4;
        let count = file.tensors[gate].dims[2] as usize;
        let half = |tensor: usize, i: usize| file.tensors[tensor].data[i * expert..(i + 1) * expert].to_vec();
        let both = (0..count).flat_map(|i| [half(gate, i), half(up, i)]).flatten().collect();
        let tensor = &mut file.tensors[gate];
        (tensor.data, tensor.name) = (both, tensor.name.replace("gate_exps", "gate_up_exps"));
        tensor.dims[1] *= 2;
    }
    file.tensors.retain(|tensor| !tensor.name.contains("up_exps") || tensor.name.contains("gate_up_exps"));
    let fused = LoadedModel::from_bytes(FileBytes::Owned(file.bytes())).unwrap();
    let rows = rows(0, &tokens(fused.config.vocab, 40, 7), 0, 0);
    let [fused, apart] = [fused, opened(&path)]
        .map(|loaded| logits(&mut on_device(loaded, KvFormat::F16, TABLE.len()), &rows, &[&TABLE]));
    assert!(fused == apart);
}
