//! Files of every architecture with hostile keys and tensors: each is refused by an error that names the key or the
//! tensor, or computes. None ends the process, takes long or takes much memory.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use kvik_model::ModelRunner;
use kvik_model::load::{LoadedModel, config_from_json, model_config};
use kvik_text::files::bytes::FileBytes;
use kvik_text::files::gguf::Gguf;

use crate::edited::{Edited, array, boolean, f32, i32, text, u32, u64};
use crate::peer::{Sequence, architectures, golden_model};
use kvik_cache::Token;
use kvik_kernels::KvFormat;
use serde_json::{Value, json};

/// Every key that the readers of architectures ask for, without the prefix of the architecture.
const KEYS: [&str; 73] = [
    "activation_sparsity_scale",
    "altup.active_idx",
    "altup.num_inputs",
    "attention.causal",
    "attention.clamp_kqv",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.key_length_mla",
    "attention.key_length_swa",
    "attention.kv_lora_rank",
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "attention.max_alibi_bias",
    "attention.q_lora_rank",
    "attention.recurrent_layers",
    "attention.scale",
    "attention.shared_kv_layers",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.temperature_length",
    "attention.temperature_scale",
    "attention.value_length",
    "attention.value_length_mla",
    "attention.value_length_swa",
    "attn_logit_softcapping",
    "block_count",
    "context_length",
    "embedding_length",
    "embedding_length_per_layer_input",
    "embedding_scale",
    "expert_count",
    "expert_feed_forward_length",
    "expert_gating_func",
    "expert_group_count",
    "expert_group_used_count",
    "expert_shared_count",
    "expert_shared_feed_forward_length",
    "expert_used_count",
    "expert_weights_norm",
    "expert_weights_scale",
    "feed_forward_length",
    "final_logit_softcapping",
    "full_attention_interval",
    "interleave_moe_layer_step",
    "leading_dense_block_count",
    "logit_scale",
    "nextn_predict_layers",
    "pooling_type",
    "residual_scale",
    "rope.dimension_count",
    "rope.dimension_count_swa",
    "rope.dimension_sections",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scale_linear",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_log_multiplier",
    "shortconv.l_cache",
    "ssm.conv_kernel",
    "ssm.group_count",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.time_step_rank",
    "use_parallel_residual",
];

/// The longest that one file may take.
const TIME_MAX: Duration = Duration::from_secs(5);
/// Peak memory of the process.
const MEMORY_KIB_MAX: u64 = 1 << 20;

fn values() -> Vec<(String, Option<Vec<u8>>)> {
    let mut values = vec![("absent".to_owned(), None)];
    let mut add = |name: &str, value: Vec<u8>| values.push((name.to_owned(), Some(value)));
    for value in [0, 1, 3, 1 << 16, 1 << 31, u32::MAX] {
        add(&format!("{value}"), u32(value));
    }
    for value in [0, 3, 1 << 31] {
        add(&format!("64 times {value}"), array(&vec![u32(value); 64]));
    }
    add("2^62", u64(1 << 62));
    add("2^64 - 1", u64(u64::MAX));
    add("-1", i32(-1));
    add("64 times -1", array(&vec![i32(-1); 64]));
    for value in [f32::NAN, f32::INFINITY, -1.0, 0.0, 1e-30, 1e30] {
        add(&format!("{value:e}"), f32(value));
    }
    for value in [f32::NAN, f32::INFINITY, 0.0] {
        add(&format!("64 times {value:e}"), array(&vec![f32(value); 64]));
    }
    add("text", text("none of it"));
    add("an array of texts", array(&[text("a"), text("b")]));
    add("true", boolean(true));
    add("64 times true", array(&vec![boolean(true); 64]));
    add("an array of none", array(&[]));
    add("an array of one", array(&[u32(2)]));
    values
}

/// What became of a file.
enum Outcome {
    Refused(String),
    Computed,
}

/// Loads a file and computes two chunks with it.
fn outcome(file: &Edited) -> Outcome {
    let refused = |error: &dyn std::error::Error| Outcome::Refused(error.to_string());
    let loaded = match LoadedModel::from_bytes(FileBytes::Owned(file.bytes())) {
        Ok(loaded) => loaded,
        Err(error) => return refused(&error),
    };
    match Sequence::load(loaded, KvFormat::F16, 48) {
        Ok(mut sequence) => {
            let tokens: Vec<Token> = (0..33).map(|i| i % sequence.vocab_len() as Token).collect();
            sequence.feed(&tokens[..32]);
            sequence.feed(&tokens[32..]);
            Outcome::Computed
        }
        Err(error) => refused(&error),
    }
}

/// Complaints about what became of files, and how many there were.
#[derive(Default)]
struct Report {
    complaints: String,
    counts: BTreeMap<&'static str, usize>,
}

impl Report {
    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Tries a file, whose error must name something of it by one of `names`.
    fn judge(&mut self, what: &str, names: &[String], file: &Edited) {
        let start = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| outcome(file)));
        match outcome {
            Ok(Outcome::Computed) => self.count("computed"),
            Ok(Outcome::Refused(error)) => self.refused(what, names, &error),
            Err(_) => self.complain(what, "it panics"),
        }
        if start.elapsed() > TIME_MAX {
            self.complain(what, &format!("it takes {:?}", start.elapsed()));
        }
    }

    fn refused(&mut self, what: &str, names: &[String], error: &str) {
        self.count("refused");
        if !names.iter().any(|name| error.contains(name.as_str())) {
            self.complain(what, error);
        }
    }

    fn complain(&mut self, what: &str, why: &str) {
        _ = writeln!(self.complaints, "{what}: {why}");
    }

    fn finish(self) -> BTreeMap<&'static str, usize> {
        println!("{:?}, peak memory {:?} KiB", self.counts, memory_kib());
        assert!(self.complaints.is_empty(), "\n{}", self.complaints);
        assert!(memory_kib().is_none_or(|kib| kib < MEMORY_KIB_MAX), "memory grew to {:?} KiB", memory_kib());
        self.counts
    }
}

/// Runs `work` on every architecture, on as many threads as there are.
fn of_every_architecture(work: impl Fn(&str, &mut Report) + Sync) -> BTreeMap<&'static str, usize> {
    let (names, all) = (Mutex::new(architectures().into_iter()), Mutex::new(Report::default()));
    let next = || names.lock().unwrap().next();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from).min(4) {
            scope.spawn(|| {
                while let Some(name) = next() {
                    let mut report = Report::default();
                    work(&name, &mut report);
                    let mut all = all.lock().unwrap();
                    all.complaints.push_str(&report.complaints);
                    report.counts.into_iter().for_each(|(what, n)| *all.counts.entry(what).or_default() += n);
                }
            });
        }
    });
    all.into_inner().unwrap().finish()
}

#[test]
fn every_key_may_be_hostile() {
    if !kvik_testing::alone() {
        return;
    }
    let values = values();
    let counts = of_every_architecture(|name, report| {
        let file = Edited::read(&golden_model(name));
        let arch = arch_of(&file);
        let (metadata, usual) = metadata_of(&file);
        let names = [&format!("{arch}."), "`blk.", "_embd", "`rope_", "`altup_"].map(str::to_owned);
        for key in KEYS {
            let key = format!("{arch}.{key}");
            let with = |file: &Edited, value: Option<Vec<u8>>| {
                let mut file = file.clone();
                file.set(&key, value);
                file
            };
            // What is read in any form is no list of texts, or no text.
            let unread = [text("none of it"), array(&[text("a"), text("b")])];
            if unread.into_iter().all(|value| config(&with(&metadata, Some(value))).as_ref() == Ok(&usual)) {
                report.count("unread");
                continue;
            }
            for (what, value) in &values {
                let set = |file: &Edited| with(file, value.clone());
                let what = format!("{name}, {key} {what}");
                match catch_unwind(|| config(&set(&metadata))) {
                    Ok(Ok(config)) if config == usual => report.count("ignored"),
                    Ok(Ok(_)) => report.judge(&what, &names, &set(&file)),
                    Ok(Err(error)) => report.refused(&what, &names, &error),
                    Err(_) => report.complain(&what, "it panics"),
                }
            }
        }
    });
    assert!(counts["refused"] > 20_000 && counts["computed"] > 2_000, "{counts:?}");
}

fn arch_of(file: &Edited) -> String {
    let (_, value) = file.keys.iter().find(|(key, _)| key == "general.architecture").unwrap();
    String::from_utf8(value[12..].to_vec()).unwrap()
}

/// The file without tensors but those that are a part of the configuration, and what is read of it.
fn metadata_of(file: &Edited) -> (Edited, String) {
    let mut metadata = file.clone();
    metadata.tensors.retain(|tensor| tensor.name.starts_with("rope_factors"));
    let usual = config(&metadata).unwrap();
    (metadata, usual)
}

/// What is read of the metadata of a file.
fn config(file: &Edited) -> Result<String, String> {
    let file = Gguf::from_bytes(FileBytes::Owned(file.bytes())).map_err(|error| error.to_string())?;
    model_config(&file).map(|config| format!("{config:?}")).map_err(|error| error.to_string())
}

#[test]
fn every_tensor_may_be_missing_or_of_another_shape() {
    if !kvik_testing::alone() {
        return;
    }
    let counts = of_every_architecture(|name, report| {
        let file = Edited::read(&golden_model(name));
        for index in first_and_last_of_each_part(&file) {
            for (what, change) in SHAPES {
                let mut changed = file.clone();
                if change(&mut changed, index) {
                    let tensor = &file.tensors[index].name;
                    report.judge(&format!("{name}, {tensor} {what}"), &names_of(tensor), &changed);
                }
            }
        }
    });
    assert!(counts["refused"] > 5_000 && counts["computed"] > 100, "{counts:?}");
}

/// What an error may name where a tensor is wrong: it, or what the file could have in its layer instead. The rows of the
/// embedding say how many the output matrix and those of every layer have.
fn names_of(tensor: &str) -> Vec<String> {
    let mut names = vec![tensor.to_owned()];
    if let Some((layer, _)) = tensor.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        names.push(format!("no tensor `blk.{layer}."));
    }
    if tensor == "token_embd.weight" {
        names.extend(["`output.weight`", "`per_layer_token_embd.weight`"].map(str::to_owned));
    }
    names
}

/// Numbers that are none, or no number's size, go through every layer.
#[test]
fn every_tensor_may_hold_anything() {
    if !kvik_testing::alone() {
        return;
    }
    let counts = of_every_architecture(|name, report| {
        let file = Edited::read(&golden_model(name));
        for index in first_and_last_of_each_part(&file) {
            for value in [f32::NAN, f32::INFINITY] {
                let mut changed = file.clone();
                let tensor = &mut changed.tensors[index];
                match tensor.type_id {
                    F32 => {
                        tensor.data.chunks_exact_mut(4).for_each(|x| x.copy_from_slice(&value.to_le_bytes()))
                    }
                    // All bits set are no number in F16, too.
                    _ => tensor.data.fill(0xff),
                }
                let names = names_of(&tensor.name);
                report.judge(&format!("{name}, {} of {value:e}", file.tensors[index].name), &names, &changed);
            }
        }
    });
    assert!(counts["computed"] > 3_000, "{counts:?}");
}

/// Numbers of tensor types.
const F32: u32 = 0;
const F16: u32 = 1;
const UNKNOWN: u32 = 99;

/// Changes a tensor of a file; says whether that is another file.
type Change = fn(&mut Edited, usize) -> bool;

const SHAPES: [(&str, Change); 7] = [
    ("missing", |file, index| {
        file.tensors.remove(index);
        true
    }),
    ("with a row more", |file, index| {
        let tensor = &mut file.tensors[index];
        let row = tensor.data[..tensor.row_bytes()].to_vec();
        tensor.data.extend(row);
        *tensor.dims.last_mut().unwrap() += 1;
        true
    }),
    ("with a row less", |file, index| {
        let tensor = &mut file.tensors[index];
        *tensor.dims.last_mut().unwrap() -= 1;
        *tensor.dims.last().unwrap() > 0
    }),
    ("transposed", |file, index| {
        let tensor = &mut file.tensors[index];
        tensor.dims.reverse();
        tensor.dims.first() != tensor.dims.last()
    }),
    ("in one row", |file, index| {
        let tensor = &mut file.tensors[index];
        let is_matrix = tensor.dims.iter().filter(|&&dim| dim > 1).count() > 1;
        tensor.dims = vec![tensor.dims.iter().product()];
        is_matrix
    }),
    ("of F16", |file, index| {
        let tensor = &mut file.tensors[index];
        std::mem::replace(&mut tensor.type_id, F16) != F16
    }),
    ("of an unknown type", |file, index| {
        file.tensors[index].type_id = UNKNOWN;
        true
    }),
];

/// The first and the last tensor of every name in a layer.
fn first_and_last_of_each_part(file: &Edited) -> Vec<usize> {
    let part = |name: &str| name.trim_start_matches("blk.").trim_start_matches(char::is_numeric).to_owned();
    let mut parts: BTreeMap<String, [usize; 2]> = BTreeMap::new();
    for (index, tensor) in file.tensors.iter().enumerate() {
        parts.entry(part(&tensor.name)).or_insert([index; 2])[1] = index;
    }
    let mut indices: Vec<usize> = parts.into_values().flatten().collect();
    indices.sort_unstable();
    indices.dedup();
    indices
}

/// `config.json` of every family: the seeds of the fuzz target that reads it.
#[test]
fn every_setting_of_a_checkpoint_may_be_hostile() {
    if !kvik_testing::alone() {
        return;
    }
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/config");
    let mut report = Report::default();
    for seed in std::fs::read_dir(seeds).unwrap().map(|file| file.unwrap().path()) {
        let usual: Value = serde_json::from_slice(&std::fs::read(&seed).unwrap()).unwrap();
        if read_settings(&usual).is_err() {
            continue;
        }
        report.count("seeds");
        let paths = paths(&usual);
        for [place, key] in &paths {
            for value in settings() {
                let mut changed = usual.clone();
                let object = changed.pointer_mut(place).and_then(Value::as_object_mut).unwrap();
                match &value {
                    Some(value) => _ = object.insert(key.clone(), value.clone()),
                    None => _ = object.remove(key),
                }
                let what = format!("{} with {place}/{key} {value:?}", seed.display());
                match catch_unwind(|| read_settings(&changed)) {
                    Ok(Ok(())) => report.count("accepted"),
                    Ok(Err(error)) if paths.iter().any(|[_, key]| error.contains(key.as_str())) => {
                        report.count("refused")
                    }
                    // What its parts should say is then missing.
                    Ok(Err(error))
                        if error.contains("is not supported") || error.contains("missing field") =>
                    {
                        report.count("refused");
                    }
                    Ok(Err(error)) => report.complain(&what, &error),
                    Err(_) => report.complain(&what, "it panics"),
                }
            }
        }
    }
    let counts = report.finish();
    assert!(counts["seeds"] > 40 && counts["refused"] > 10_000 && counts["accepted"] > 2_000, "{counts:?}");
}

/// Every key of a configuration and of the objects in it, with the place of its object.
fn paths(config: &Value) -> Vec<[String; 2]> {
    let mut places = vec![String::new()];
    let mut paths = Vec::new();
    while let Some(place) = places.pop() {
        for (key, value) in config.pointer(&place).and_then(Value::as_object).into_iter().flatten() {
            paths.push([place.clone(), key.clone()]);
            if value.is_object() {
                places.push(format!("{place}/{key}"));
            }
        }
    }
    paths
}

fn settings() -> Vec<Option<Value>> {
    let mut values: Vec<Value> = [0, 1, 3, 1 << 31, i64::MAX, -1].map(Value::from).into();
    values.push(u64::MAX.into());
    values.extend([1e-30, -1.0, 1e308].map(Value::from));
    values.extend([
        json!("text"),
        json!(true),
        json!(null),
        json!([]),
        json!([1, 2]),
        json!({}),
        json!(["a", "b", "c", "d"]),
    ]);
    values.into_iter().map(Some).chain([None]).collect()
}

/// Reads a `config.json`, and what a block of such a model takes.
fn read_settings(config: &Value) -> Result<(), String> {
    let config =
        config_from_json(config.to_string().as_bytes(), "test").map_err(|error| error.to_string())?;
    let layout = ModelRunner::uniform_layout(&config, KvFormat::F16);
    let _ = ModelRunner::auxiliary(&config, &layout, 512);
    Ok(())
}

/// Peak memory of the process, if the system reports it.
fn memory_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// A key that a reader asks for and that is not in the lists above would not be tried.
#[test]
fn all_keys_are_tried() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = vec![source.join("load/gguf.rs"), source.join("load/settings.rs")];
    files.extend(std::fs::read_dir(source.join("arch")).unwrap().map(|file| file.unwrap().path()));
    let mut found = 0;
    for file in files {
        let code = std::fs::read_to_string(file).unwrap();
        let asks = ["Key::new(", "Key::gguf(", "count(", "number(", "by_layer(", "&str = "];
        for quoted in asks.iter().flat_map(|asks| code.split(asks).skip(1)) {
            let Some(key) = quoted.trim_start().strip_prefix('"').and_then(|rest| rest.split('"').next())
            else {
                continue;
            };
            // Keys of no architecture, and names of tensors.
            if !key.contains("general.") && !key.ends_with(".weight") && !key.contains(' ') {
                assert!(KEYS.contains(&key), "{key} is not tried");
                found += 1;
            }
        }
    }
    assert!(found > 90, "{found} keys are read");
}
