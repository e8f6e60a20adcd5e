//! Small models of every architecture: their logits are those of the processor, or they are refused with the reason.

use kvik_cache::{BlockId, Token};
use kvik_engine::load::LoadedModel;
use kvik_engine::model::device::{DeviceError, DeviceModel};
use kvik_kernels::KvFormat;

use crate::peer::{architectures, golden_model};
use crate::{has_device, logits, on_device, on_processor, rows};

/// Rows of the prompt.
const ROWS: usize = 37;

#[test]
fn models_of_every_architecture_compute_what_the_processor_does_or_are_refused() {
    if !has_device() {
        return;
    }
    let table: Vec<BlockId> = [2, 0, 1].map(BlockId).to_vec();
    let (mut runs, mut refused) = (Vec::new(), Vec::new());
    for name in architectures() {
        let path = golden_model(&name);
        let config = LoadedModel::open(&path).unwrap().config;
        if let Err(error) = DeviceModel::check(&config) {
            assert!(matches!(error, DeviceError::Unsupported { .. }), "{name}: {error}");
            refused.push(format!("{name}: {error}"));
            continue;
        }
        let tokens: Vec<Token> = (0..ROWS).map(|i| (i * 7 % config.vocab) as Token).collect();
        let rows = rows(0, &tokens, 0, ROWS - 5);
        for (format, tolerance) in [(KvFormat::F16, 2e-3), (KvFormat::Q8, 4e-2)] {
            let found = logits(&mut on_device(&path, format, 3), &rows, &[&table]);
            let expected = logits(&mut on_processor(&path, format, 3), &rows, &[&table]);
            assert_eq!(found.len(), 5 * config.vocab, "{name}");
            let largest = expected.iter().fold(1.0_f32, |largest, logit| largest.max(logit.abs()));
            let apart = found.iter().zip(&expected).map(|(a, b)| (a - b).abs() / largest);
            let apart = apart.fold(0.0, f32::max);
            assert!(apart <= tolerance, "{name} {format}: {apart}");
        }
        runs.push(name);
    }
    println!("{} run: {}\n{}", runs.len(), runs.join(", "), refused.join("\n"));
    for name in ["arch-llama", "arch-qwen2", "arch-qwen3"] {
        assert!(runs.iter().any(|run| run.starts_with(name)), "{name} runs");
    }
    assert!(refused.iter().any(|refused| refused.contains("processor")), "{refused:?}");
}
