//! A Hugging Face checkpoint computes what the GGUF file of the same numbers does.
//!
//! The golden files, which llama.cpp has answered on, are written as checkpoints: by the names, the orders of rows and
//! the offsets that llama.cpp's conversion takes for granted of each family, backwards.

mod checkpoint;
mod families;
mod heads;
mod others;
mod packed;
mod states;
mod write;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use kvik_model::Model;
use kvik_model::load::LoadedModel;

use self::families::{Family, families};
use self::write::{Tensor, gguf, tensors_of, write};
use crate::peer::Sequence;
use kvik_cache::Token;
use kvik_kernels::{KvFormat, Pool};
use kvik_testing::{effort, golden};
use serde_json::Value;

/// Largest difference of a logit, relative to the largest of its row: sums of products are in another order where
/// heads are permuted, and norms are rounded once more where an offset is added.
const ERROR_MAX: f32 = 1e-4;

#[test]
fn every_family_computes_what_its_gguf_file_does() {
    let complaints: Vec<String> = families().filter_map(complaint).collect();
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

fn complaint(family: &Family) -> Option<String> {
    let loaded = LoadedModel::open(&golden(&format!("{}.gguf", family.golden))).unwrap();
    let tensors = family.prepared(tensors_of(&loaded.tensors));
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), family, &loaded.config, &tensors);
    let expect = logits(LoadedModel { tensors: gguf(&tensors), ..loaded }, family).unwrap();
    let found = LoadedModel::open(directory.path()).map_err(|error| error.to_string());
    let found = match found.and_then(|checkpoint| logits(checkpoint, family)) {
        Ok(found) => found,
        Err(error) => return Some(format!("{family}: {error}")),
    };
    let largest = expect.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let errors = expect.iter().zip(&found).map(|(x, y)| (x - y).abs());
    let error = kvik_testing::largest(errors) / largest;
    (error.is_nan() || error > ERROR_MAX).then(|| format!("{family}: logits are {error:.1e} off"))
}

/// Logits behind the golden prompt, behind 43 of the tokens that follow it, and behind one more.
fn logits(model: LoadedModel, family: &Family) -> Result<Vec<f32>, String> {
    let file = std::fs::read_to_string(golden(&format!("{}.json", family.golden))).unwrap();
    let file: Value = serde_json::from_str(&file).unwrap();
    let list = |name: &str| -> Vec<Token> {
        file[name].as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as Token).collect()
    };
    let (prompt, greedy) = (list("prompt"), list("greedy"));
    // A context beyond the original one of LongRoPE.
    let mut sequence = Sequence::load(model, KvFormat::F32, 1024).map_err(|error| error.to_string())?;
    let chunks = [&prompt[..], &greedy[..43], &greedy[43..44]];
    Ok(chunks.into_iter().flat_map(|tokens| sequence.feed(tokens).to_vec()).collect())
}

/// A checkpoint of `family` of which `change` has changed the tensors: why it is refused.
fn refused(family: &Family, change: impl Fn(&mut Vec<(String, Tensor)>)) -> String {
    let LoadedModel { config, tensors, .. } =
        LoadedModel::open(&golden(&format!("{}.gguf", family.golden))).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut tensors = family.checkpoint(&config, &family.prepared(tensors_of(&tensors)));
    change(&mut tensors);
    write::write_tensors(directory.path(), &family.config(&config), &tensors);
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
    let family = |golden: &str| families().find(|family| family.golden == golden).unwrap();
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

/// Changes a tensor of a checkpoint; says whether that is another checkpoint.
type Change = fn(&mut Vec<(String, Tensor)>, usize) -> bool;

const CHANGES: [(&str, Change); 5] = [
    ("missing", |tensors, index| {
        tensors.remove(index);
        true
    }),
    ("twice as long", |tensors, index| {
        let tensor = &mut tensors[index].1;
        tensor.data.extend(tensor.data.clone());
        tensor.shape[0] *= 2;
        true
    }),
    ("transposed", |tensors, index| {
        let shape = &mut tensors[index].1.shape;
        shape.reverse();
        shape.first() != shape.last()
    }),
    ("flat", |tensors, index| {
        let shape = &mut tensors[index].1.shape;
        *shape = vec![shape.iter().product()];
        true
    }),
    ("in four dimensions", |tensors, index| {
        let shape = &mut tensors[index].1.shape;
        *shape = [&[1; 3], &shape[..]].concat();
        true
    }),
];

/// Each is refused by the tensor, or by another of its layer that the file could have instead, or the checkpoint loads:
/// none ends the process.
#[test]
fn every_tensor_may_be_missing_or_of_another_shape() {
    let (all, refusals, complaints) =
        (Mutex::new(families().step_by(effort(4, 1))), AtomicUsize::new(0), Mutex::new(Vec::new()));
    let next = || all.lock().unwrap().next();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from).min(4) {
            scope.spawn(|| {
                while let Some(family) = next() {
                    let (refused, wrong) = of_changed_tensors(family);
                    refusals.fetch_add(refused, Ordering::Relaxed);
                    complaints.lock().unwrap().extend(wrong);
                }
            });
        }
    });
    let (complaints, refusals) = (complaints.into_inner().unwrap(), refusals.into_inner());
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
    assert!(refusals > effort(600, 3_000), "{refusals} are refused");
}

/// How many changes of a family's tensors are refused, and complaints about the others.
fn of_changed_tensors(family: &Family) -> (usize, Vec<String>) {
    let LoadedModel { config, tensors, .. } =
        LoadedModel::open(&golden(&format!("{}.gguf", family.golden))).unwrap();
    let (json, directory) = (family.config(&config), tempfile::tempdir().unwrap());
    let usual = family.checkpoint(&config, &family.prepared(tensors_of(&tensors)));
    let (mut refused, mut complaints) = (0, Vec::new());
    for index in first_of_each_part(&usual) {
        for (what, change) in CHANGES {
            let (name, mut tensors) = (&usual[index].0, usual.clone());
            if !change(&mut tensors, index) {
                continue;
            }
            write::write_tensors(directory.path(), &json, &tensors);
            let why = why_refused(directory.path());
            refused += usize::from(!why.is_empty());
            if !why.is_empty() && !names_of(name).iter().any(|name| why.contains(name.as_str())) {
                complaints.push(format!("{family}, {name} {what}: {why}"));
            }
        }
    }
    (refused, complaints)
}

/// The first tensor of every name in a layer, or of an expert.
fn first_of_each_part(tensors: &[(String, Tensor)]) -> Vec<usize> {
    let part = |name: &str| name.split('.').filter(|part| part.parse::<u32>().is_err()).collect::<String>();
    let mut parts = BTreeMap::new();
    tensors.iter().enumerate().for_each(|(index, (name, _))| _ = parts.entry(part(name)).or_insert(index));
    parts.into_values().collect()
}

/// What an error may name where a tensor is wrong: it, or by GGUF's name what the file could have in its layer or beside
/// its layers instead.
fn names_of(tensor: &str) -> Vec<String> {
    let mut names = vec![tensor.to_owned()];
    // Blocks, scales and biases of gpt-oss belong together.
    names.extend(
        tensor.rsplit_once("_proj_").map(|(module, _)| module.trim_start_matches("model.").to_owned()),
    );
    let layer = tensor.split_once("layers.").and_then(|(_, rest)| rest.split('.').next());
    match layer.filter(|layer| layer.parse::<u32>().is_ok()) {
        Some(layer) => names.push(format!("`blk.{layer}.")),
        None => names.extend(["`token_embd", "`output", "`per_layer_", "`altup_"].map(str::to_owned)),
    }
    names
}
