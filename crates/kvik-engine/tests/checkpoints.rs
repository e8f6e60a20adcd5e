//! A Hugging Face checkpoint computes what the GGUF file of the same numbers does.
//!
//! The golden files, which llama.cpp has answered on, are written as checkpoints: by the names, the orders of rows and
//! the offsets that llama.cpp's conversion takes for granted of each family, backwards.

#![allow(clippy::unwrap_used)] // a test may fail where it stands

mod checkpoints {
    pub(crate) mod families;
    pub(crate) mod packed;
    pub(crate) mod write;
}

use std::path::Path;
use std::sync::Arc;

use checkpoints::families::{FAMILIES, Family};
use checkpoints::write::{Tensor, gguf, tensors_of, write};
use kvik_cache::{BLOCK_POSITIONS, BlockId, Token};
use kvik_engine::files::TensorSource;
use kvik_engine::load::LoadedModel;
use kvik_engine::model::batch::{Batch, Output, Row, Runner, SequenceKv};
use kvik_engine::model::{Model, ModelConfig, ModelRunner};
use kvik_kernels::{KvFormat, Pool};
use kvik_testing::golden;
use serde_json::Value;

/// Largest difference of a logit, relative to the largest of its row: sums of products are in another order where
/// heads are permuted, and norms are rounded once more where an offset is added.
const ERROR_MAX: f32 = 1e-4;

#[test]
fn every_family_computes_what_its_gguf_file_does() {
    let complaints: Vec<String> = FAMILIES.iter().filter_map(complaint).collect();
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

fn complaint(family: &Family) -> Option<String> {
    let name = family.to_string();
    let LoadedModel { config, tensors, .. } =
        LoadedModel::open(&golden(&format!("{}.gguf", family.golden))).unwrap();
    let tensors = family.prepared(tensors_of(&tensors));
    let expect = logits(config.clone(), gguf(&tensors), family);
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), family, &config, &tensors);
    let checkpoint = match LoadedModel::open(directory.path()) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return Some(format!("{name}: {error}")),
    };
    let found = logits(checkpoint.config, checkpoint.tensors, family);
    let largest = expect.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let error = expect.iter().zip(&found).fold(0.0f32, |error, (x, y)| error.max((x - y).abs())) / largest;
    (error.is_nan() || error > ERROR_MAX).then(|| format!("{name}: logits are {error:.1e} off"))
}

/// Logits behind the golden prompt, behind 43 of the tokens that follow it, and behind one more.
fn logits(config: ModelConfig, tensors: TensorSource, family: &Family) -> Vec<f32> {
    let file = std::fs::read_to_string(golden(&format!("{}.json", family.golden))).unwrap();
    let file: Value = serde_json::from_str(&file).unwrap();
    let list = |name: &str| -> Vec<Token> {
        file[name].as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as Token).collect()
    };
    let (prompt, greedy) = (list("prompt"), list("greedy"));
    let layout = ModelRunner::uniform_layout(&config, KvFormat::F32);
    let pool = Pool::new(1);
    let model = match Model::load(config, tensors, None, &pool, &|_, _| {}) {
        Ok(model) => Arc::new(model),
        Err(error) => panic!("{family}: {error}"),
    };
    let blocks = 128_usize.div_ceil(BLOCK_POSITIONS);
    // A context beyond the original one of LongRoPE.
    let mut runner = ModelRunner::new(model, pool, layout, blocks, 1024).unwrap();
    let table: Vec<BlockId> = (0..blocks as u32).map(BlockId).collect();
    let (mut len, mut all) = (0, Vec::new());
    for tokens in [&prompt[..], &greedy[..43], &greedy[43..44]] {
        let row = |(index, &token): (usize, &Token)| {
            let position = (len + index) as u32;
            let output = Output::logits_if(index + 1 == tokens.len());
            Row { sequence: 0, token, position, cache_position: position, output }
        };
        let rows: Vec<Row> = tokens.iter().enumerate().map(row).collect();
        let sequences = [SequenceKv::in_blocks(&table)];
        all.extend_from_slice(runner.forward(&Batch { rows: &rows, sequences: &sequences }, &mut []));
        len += tokens.len();
    }
    all
}

/// A checkpoint of `family` of which `change` has changed the tensors: why it is refused.
fn refused(family: &Family, change: impl Fn(&mut Vec<(String, Tensor)>)) -> String {
    let LoadedModel { config, tensors, .. } =
        LoadedModel::open(&golden(&format!("{}.gguf", family.golden))).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut tensors = family.checkpoint(&config, &family.prepared(tensors_of(&tensors)));
    change(&mut tensors);
    checkpoints::write::write_tensors(directory.path(), &family.config(&config), &tensors);
    why_refused(directory.path())
}

fn why_refused(directory: &Path) -> String {
    let LoadedModel { config, tensors, .. } = match LoadedModel::open(directory) {
        Ok(loaded) => loaded,
        Err(error) => return error.to_string(),
    };
    let loaded = Model::load(config, tensors, None, &Pool::new(1), &|_, _| {});
    loaded.err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn what_is_missing_or_too_much_is_named() {
    let family = |golden: &str| FAMILIES.iter().find(|family| family.golden == golden).unwrap();
    let without = |golden: &str, name: &str| {
        refused(family(golden), |tensors| tensors.retain(|(other, _)| !other.contains(name)))
    };
    assert_eq!(without("arch-qwen3moe", "nothing"), "");
    assert!(
        without("arch-qwen3moe", "layers.1.mlp.experts.5.up_proj").contains("blk.1.ffn_up_exps.5.weight")
    );
    assert!(without("arch-qwen3moe", "layers.0.mlp.gate.weight").contains("blk.0.ffn_gate_inp.weight"));
    assert!(without("arch-gpt-oss", "layers.1.mlp.experts.down_proj_scales").contains("down_proj_scales"));
    assert!(without("arch-gpt-oss", "layers.0.mlp.experts").contains("blk.0.ffn_down_exps"));
    let as_if = |golden: &str, from: &str, to: &str| {
        refused(family(golden), |tensors| {
            let (_, tensor) = tensors.iter().find(|(name, _)| name == from).unwrap();
            let tensor = tensor.clone();
            tensors.push((to.to_owned(), tensor));
        })
    };
    let expert = "model.layers.0.mlp.experts.0.up_proj.weight";
    let ninth = "model.layers.0.mlp.experts.8.up_proj.weight";
    assert!(as_if("arch-qwen3moe", expert, ninth).contains(ninth));
    let biased = "model.layers.0.mlp.experts.0.up_proj.bias";
    assert!(as_if("arch-qwen3moe", "model.norm.weight", biased).contains(biased));
    let vision = "vision_tower.blocks.0.weight";
    assert!(as_if("arch-gemma3", "model.norm.weight", vision).contains(vision));
    let bad = refused(family("arch-gpt-oss"), |tensors| {
        tensors
            .iter_mut()
            .filter(|(name, _)| name.ends_with("_scales"))
            .for_each(|(_, tensor)| tensor.shape.swap(1, 2));
    });
    assert!(bad.contains("down_proj_scales") || bad.contains("gate_up_proj_scales"), "{bad}");
}
