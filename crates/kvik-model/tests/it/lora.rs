//! Adapters: what they compute, and which files are refused.

use std::sync::Arc;

use kvik_model::batch::{Batch, Output, Row, Runner, SequenceKv};
use kvik_model::load::{LoadedAdapter, LoadedModel};
use kvik_model::{Adapter, AdapterError, Adapters, Model, ModelConfig, ModelRunner};
use kvik_model::{AdapterId, AdapterMix, AdapterUse};
use kvik_text::files::TensorSource;
use kvik_text::files::bytes::FileBytes;
use kvik_text::files::gguf::Gguf;
use kvik_text::files::gguf::write::GgufWriter;

use crate::random_adapter::{RandomAdapter, bytes, head};
use kvik_cache::{BlockId, Token};
use kvik_kernels::{KvFormat, Pool, WeightType, dequantize};
use kvik_testing::mix;

fn golden(name: &str) -> LoadedModel {
    let path = kvik_testing::golden(&format!("{name}.gguf"));
    LoadedModel::open(&path).unwrap()
}

fn pack(config: ModelConfig, tensors: TensorSource, target: Option<WeightType>) -> Model {
    Model::load(config, tensors, target, &Pool::new(1), &|_, _| {}).unwrap()
}

fn model(name: &str) -> Model {
    let LoadedModel { config, tensors, .. } = golden(name);
    pack(config, tensors, None)
}

fn load(model: &Model, file: Vec<u8>) -> Result<Adapter, AdapterError> {
    Adapter::load(&LoadedAdapter::from_bytes(file).unwrap(), model, &Pool::new(1))
}

fn mix_of(adapters: &Adapters, uses: &[(u32, f32)]) -> Option<AdapterMix> {
    adapters.mix(uses.iter().map(|&(id, scale)| AdapterUse { adapter: AdapterId(id), scale }))
}

/// Logits of all positions of a prompt, `[tokens, vocab]`.
fn logits(model: &Arc<Model>, adapters: &Adapters, uses: &[(u32, f32)], prompt: &[Token]) -> Vec<f32> {
    let layout = ModelRunner::uniform_layout(model.config(), KvFormat::F32);
    let runner = ModelRunner::new(model.clone(), Pool::new(2), layout, 8, 128).unwrap();
    let mut runner = runner.with_adapters(adapters.clone());
    let rows: Vec<Row> = (0..).zip(prompt).map(|(position, &token)| row(token, position)).collect();
    let (table, mix) = ((0..8).map(BlockId).collect::<Vec<_>>(), mix_of(adapters, uses));
    let sequence = SequenceKv { adapters: mix.as_ref(), ..SequenceKv::in_blocks(&table) };
    runner.forward(&Batch { rows: &rows, sequences: &[sequence] }, &mut []).to_vec()
}

fn row(token: Token, position: u32) -> Row {
    Row { sequence: 0, token, position, cache_position: position, output: Output::Logits }
}

fn prompt(config: &ModelConfig) -> Vec<Token> {
    (0..40).map(|index| (mix(index) % config.vocab as u64) as Token).collect()
}

/// The model with `scale * alpha / rank * B A` added to its matrices, in f32.
fn merged(name: &str, adapters: &[(RandomAdapter, f32)]) -> Model {
    let LoadedModel { config, tensors, .. } = golden(name);
    let mut writer = GgufWriter::new();
    for name in tensors.names() {
        let view = tensors.get(name).unwrap();
        let mut values = vec![0.0; view.rows * view.cols];
        dequantize(view.ty, view.data, &mut values);
        for (adapter, scale) in adapters {
            if adapter.matrices(&config).iter().any(|(matrix, ..)| matrix == name) {
                add_product(&mut values, name, [view.rows, view.cols], adapter, *scale);
            }
        }
        let shape = if view.rows == 1 { vec![view.cols] } else { vec![view.rows, view.cols] };
        writer.tensor(name, WeightType::F32, &shape, &bytes(WeightType::F32, &values));
    }
    let file = Gguf::from_bytes(FileBytes::Owned(writer.to_bytes())).unwrap();
    pack(config, TensorSource::from_gguf(file), None)
}

fn add_product(
    values: &mut [f32],
    name: &str,
    [rows, cols]: [usize; 2],
    adapter: &RandomAdapter,
    scale: f32,
) {
    let [a, b] = adapter.values(name, [rows, cols]);
    let scale = f64::from(scale * adapter.alpha) / adapter.rank as f64;
    for (row, values) in values.chunks_exact_mut(cols).enumerate() {
        for (col, value) in values.iter_mut().enumerate() {
            let products = (0..adapter.rank)
                .map(|i| f64::from(b[row * adapter.rank + i]) * f64::from(a[i * cols + col]));
            *value += (scale * products.sum::<f64>()) as f32;
        }
    }
}

fn worst(one: &[f32], other: &[f32]) -> f32 {
    assert_eq!(one.len(), other.len());
    kvik_testing::largest(one.iter().zip(other).map(|(a, b)| (a - b).abs()))
}

/// An adapter beside the model computes what the model does with the adapter merged into its weights.
#[test]
fn an_adapter_computes_what_a_merged_model_does() {
    for (name, output) in [
        ("arch-llama-gqa", true),
        ("arch-llama-mqa", false),
        ("arch-qwen2", true),
        ("arch-qwen3", true),
        ("arch-qwen3-tied", false),
        ("arch-deepseek2-dense", false),
        // Gate and up are one tensor.
        ("arch-glm4", true),
        ("arch-phi3", true),
    ] {
        let [one, two] =
            [(1, 4), (2, 7)].map(|(seed, rank)| RandomAdapter { output, ..RandomAdapter::new(seed, rank) });
        let LoadedModel { config, tensors, .. } = golden(name);
        let prompt = prompt(&config);
        let files = [&one, &two].map(|adapter| adapter.file(&config));
        let model = Arc::new(pack(config, tensors, Some(WeightType::F32)));
        let adapters = Adapters::new(files.map(|file| load(&model, file).unwrap()).into());
        let check = |uses: &[(u32, f32)], merges: &[(RandomAdapter, f32)]| {
            let (found, expect) = (logits(&model, &adapters, uses, &prompt), merged(name, merges));
            let expect = logits(&Arc::new(expect), &Adapters::default(), &[], &prompt);
            let (worst, plain) =
                (worst(&found, &expect), worst(&found, &logits(&model, &adapters, &[], &prompt)));
            println!("{name} {uses:?}: {worst:e} from merged, {plain} from the model alone");
            assert!(worst < 2e-4 && plain > 0.05, "{name} {uses:?}: {worst} {plain}");
        };
        check(&[(0, 1.0)], &[(one, 1.0)]);
        check(&[(1, -0.5)], &[(two, -0.5)]);
        check(&[(1, 0.25), (0, 0.75)], &[(one, 0.75), (two, 0.25)]);
    }
}

/// What an adapter was trained for and the forward pass never asks for would be left out silently.
#[test]
fn what_an_adapter_may_change_changes_the_answer() {
    let random = RandomAdapter::new(5, 1);
    for (name, least) in [
        ("arch-glm4", 6),
        ("arch-phi3", 3),
        ("arch-gpt-oss", 5),
        ("arch-deepseek2", 5),
        ("arch-qwen2moe", 7),
        ("arch-llama4", 7),
    ] {
        let LoadedModel { config, tensors, .. } = golden(name);
        let (model, prompt) = (Arc::new(model(name)), prompt(&config));
        let plain = logits(&model, &Adapters::default(), &[], &prompt);
        let mut applied = 0;
        for tensor in tensors.names() {
            let view = tensors.get(tensor).unwrap();
            let mut file = head(&config, random.alpha);
            random.pair(&mut file, tensor, [view.rows, view.cols]);
            let Ok(adapter) = load(&model, file.to_bytes()) else { continue };
            assert!(logits(&model, &Adapters::new(vec![adapter]), &[(0, 1.0)], &prompt) != plain, "{tensor}");
            applied += usize::from(tensor.starts_with("blk.0."));
        }
        assert!(applied >= least, "{name}: {applied}");
    }
}

#[test]
fn every_type_of_weights_can_be_an_adapters() {
    let model = Arc::new(model("type-f16"));
    let prompt = prompt(model.config());
    let of = |ty| {
        let adapter = RandomAdapter { ty, ..RandomAdapter::new(3, 32) };
        let adapters = Adapters::new(vec![load(&model, adapter.file(model.config())).unwrap()]);
        logits(&model, &adapters, &[(0, 0.2)], &prompt)
    };
    let exact = of(WeightType::F32);
    for (ty, bound) in [(WeightType::F16, 3e-3), (WeightType::Bf16, 3e-2), (WeightType::Q8_0, 5e-2)] {
        let worst = worst(&of(ty), &exact);
        println!("{}: {worst}", ty.name());
        assert!(worst > 0.0 && worst < bound, "{}: {worst}", ty.name());
    }
}

#[test]
fn alpha_0_leaves_the_weights_as_they_are() {
    let model = Arc::new(model("arch-qwen3"));
    let prompt = prompt(model.config());
    let of = |alpha| {
        let adapter = RandomAdapter { alpha, ..RandomAdapter::new(3, 4) };
        let adapters = Adapters::new(vec![load(&model, adapter.file(model.config())).unwrap()]);
        logits(&model, &adapters, &[(0, 1.0)], &prompt)
    };
    assert_eq!(of(0.0), of(4.0));
    assert_ne!(of(0.0), of(8.0));
}

/// The digest is that of weights and alpha, and nothing else.
#[test]
fn what_is_computed_decides_the_digest() {
    let model = model("arch-qwen3");
    let digest = |adapter: RandomAdapter| load(&model, adapter.file(model.config())).unwrap().digest();
    let base = RandomAdapter::new(1, 4);
    let mut named = head(model.config(), base.alpha);
    named.text("general.name", "another name");
    for (name, rows, cols) in base.matrices(model.config()) {
        let [a, b] = base.values(&name, [rows, cols]);
        named.tensor(&format!("{name}.lora_b"), WeightType::F32, &[rows, 4], &bytes(WeightType::F32, &b));
        named.tensor(&format!("{name}.lora_a"), WeightType::F32, &[4, cols], &bytes(WeightType::F32, &a));
    }
    assert_eq!(load(&model, named.to_bytes()).unwrap().digest(), digest(base));
    let others = [
        base,
        RandomAdapter { seed: 2, ..base },
        RandomAdapter { alpha: 1.0, ..base },
        RandomAdapter { rank: 5, ..base },
        RandomAdapter { ty: WeightType::F16, ..base },
        RandomAdapter { output: true, ..base },
    ];
    let mut digests = others.map(digest).to_vec();
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), others.len());
}

/// A file with one pair, changed by `change`: its name, its shapes.
fn odd(config: &ModelConfig, name: &str, a: [usize; 2], b: [usize; 2]) -> Vec<u8> {
    let zeros = |[rows, cols]: [usize; 2]| vec![0; rows * cols * 4];
    let mut writer = head(config, 8.0);
    writer.tensor(&format!("{name}.lora_a"), WeightType::F32, &a, &zeros(a));
    writer.tensor(&format!("{name}.lora_b"), WeightType::F32, &b, &zeros(b));
    writer.to_bytes()
}

#[test]
fn what_does_not_fit_the_model_is_refused_by_name() {
    let model = model("arch-qwen3-tied");
    let config = model.config();
    let (d, vocab) = (config.d_model, config.vocab);
    let q = config.heads * config.head_dim;
    let check = |file: Vec<u8>, words: &[&str]| {
        let error = load(&model, file).err().expect("it is refused").to_string();
        for word in words {
            assert!(error.contains(word), "{error} says {word}");
        }
    };
    let name = "blk.0.attn_q.weight";
    let shape = |[rows, cols]: [usize; 2]| format!("[{rows}, {cols}]");
    check(
        odd(config, name, [4, d + 1], [q, 4]),
        &["attn_q.weight.lora_a", &shape([4, d + 1]), &shape([4, d])],
    );
    check(
        odd(config, name, [4, d], [q + 1, 4]),
        &["attn_q.weight.lora_b", &shape([q + 1, 4]), &shape([q, 4])],
    );
    check(odd(config, name, [4, d], [q, 5]), &["attn_q.weight.lora_b", &shape([q, 5]), &shape([q, 4])]);
    check(odd(config, "token_embd.weight", [4, d], [vocab, 4]), &["token_embd.weight.lora_a"]);
    check(odd(config, "output.weight", [4, d], [vocab, 4]), &["output.weight.lora_a"]);
    check(odd(config, "blk.0.attn_norm.weight", [4, d], [d, 4]), &["blk.0.attn_norm.weight.lora_a"]);
    check(odd(config, "blk.99.attn_q.weight", [4, d], [q, 4]), &["blk.99.attn_q.weight.lora_a"]);
    check(odd(config, "blk.0.attn_q", [4, d], [q, 4]), &["blk.0.attn_q.lora_a"]);
    let other = model_config("arch-llama-gqa");
    check(odd(&other, name, [4, d], [q, 4]), &["llama", "qwen3"]);
    check(head(config, 8.0).to_bytes(), &["no tensors"]);
    for (half, missing) in [("lora_a", "lora_b"), ("lora_b", "lora_a")] {
        let mut writer = head(config, 8.0);
        writer.tensor(&format!("{name}.{half}"), WeightType::F32, &[4, d], &vec![0; 4 * d * 4]);
        check(writer.to_bytes(), &[&format!("{name}.{missing}")]);
    }
    let mut writer = head(config, 8.0);
    writer.tensor("blk.0.attn_q.weight.magnitude", WeightType::F32, &[q], &vec![0; q * 4]);
    check(writer.to_bytes(), &["blk.0.attn_q.weight.magnitude"]);
}

/// Those that are multiplied into queries and outputs, and experts.
#[test]
fn matrices_that_are_not_multiplied_by_rows_are_refused_by_name() {
    for (file, name) in [
        ("arch-deepseek2", "blk.1.attn_k_b.weight"),
        ("arch-deepseek2", "blk.1.attn_v_b.weight"),
        ("arch-deepseek2-lite", "blk.1.attn_kv_b.weight"),
        ("arch-deepseek2", "blk.1.ffn_up_exps.weight"),
    ] {
        let model = model(file);
        let error = load(&model, odd(model.config(), name, [2, 24], [24, 2])).err().expect("it is refused");
        let error = error.to_string();
        assert!(error.contains(name) && error.contains("does not adapt"), "{error}");
    }
}

fn model_config(name: &str) -> ModelConfig {
    golden(name).config
}

#[test]
fn a_file_that_is_no_adapter_is_refused() {
    let config = model_config("arch-qwen3");
    let check = |file: &GgufWriter, words: &[&str]| {
        let error = LoadedAdapter::from_bytes(file.to_bytes()).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{error} says {word}");
        }
    };
    check(&GgufWriter::new(), &["general.type", "nothing", "adapter"]);
    check(GgufWriter::new().text("general.type", "model"), &["general.type", "model"]);
    let mut adapter = GgufWriter::new();
    adapter.text("general.type", "adapter");
    check(adapter.clone().text("adapter.type", "control"), &["adapter.type", "control", "lora"]);
    adapter.text("adapter.type", "lora");
    check(&adapter, &["general.architecture"]);
    check(adapter.clone().text("general.architecture", "mamba"), &["mamba"]);
    for alpha in [f32::NAN, f32::INFINITY, -1e30] {
        check(&head(&config, alpha), &["adapter.lora.alpha"]);
    }
    check(
        head(&config, 1.0).i32s("adapter.alora.invocation_tokens", &[1]),
        &["adapter.alora.invocation_tokens"],
    );
}

/// Whatever bytes of a file are damaged, it is read or refused.
#[test]
fn damaged_files_are_read_or_refused() {
    let model = model("arch-qwen3");
    let (d, q) = (model.config().d_model, model.config().heads * model.config().head_dim);
    let file = odd(model.config(), "blk.0.attn_q.weight", [2, d], [q, 2]);
    let (mut refused, mut read) = (0, 0);
    for round in 0..4000u64 {
        let mut file = file.clone();
        // The header: what follows it are numbers.
        let at = mix(round) as usize % 420;
        file[at] = mix(!round) as u8;
        if round.is_multiple_of(5) {
            file.truncate(mix(round ^ 77) as usize % file.len());
        }
        let loaded = LoadedAdapter::from_bytes(file).ok();
        match loaded.and_then(|loaded| Adapter::load(&loaded, &model, &Pool::new(1)).ok()) {
            Some(_) => read += 1,
            None => refused += 1,
        }
    }
    assert!(refused > 1000 && read > 10, "{refused} refused, {read} read");
}
