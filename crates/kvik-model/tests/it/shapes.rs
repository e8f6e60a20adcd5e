//! For any shape in a file, the model is refused with an error or computes; it never ends the process.

use std::cell::Cell;
use std::sync::Arc;

use kvik_cache::{BLOCK_POSITIONS, BlockId, Token};
use kvik_kernels::{KvFormat, Pool, WeightType, quantize};
use kvik_model::batch::{Batch, Output, Row, Runner, SequenceKv};
use kvik_model::load::LoadedModel;
use kvik_model::{Model, ModelRunner};
use kvik_text::files::bytes::FileBytes;
use kvik_text::files::gguf::write::GgufWriter;
use proptest::prelude::*;

/// The numbers of a model's metadata.
#[derive(Debug, Clone, PartialEq)]
struct Shape {
    arch: &'static str,
    layers: u32,
    d_model: u32,
    d_ff: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    vocab: u32,
    context: u32,
    rope_dims: u32,
    norm_eps: f32,
    theta: f32,
    factor: f32,
    scaling: &'static str,
}

const VALID: Shape = Shape {
    arch: "llama",
    layers: 2,
    d_model: 32,
    d_ff: 64,
    heads: 4,
    kv_heads: 2,
    head_dim: 8,
    vocab: 12,
    context: 64,
    rope_dims: 8,
    norm_eps: 1e-5,
    theta: 10_000.0,
    factor: 1.0,
    scaling: "none",
};

/// Weights beyond this are not created; the file then has those of another shape.
const ELEMENTS_MAX: u64 = 1 << 20;

impl Shape {
    /// Tensors of the model, by name, with rows and columns.
    fn tensors(&self) -> Vec<(String, [u64; 2])> {
        let [d, ff, dim] = [self.d_model, self.d_ff, self.head_dim].map(u64::from);
        let (q, kv) = (u64::from(self.heads) * dim, u64::from(self.kv_heads) * dim);
        let mut tensors = vec![
            ("token_embd.weight".to_owned(), [self.vocab.into(), d]),
            ("output_norm.weight".to_owned(), [1, d]),
        ];
        for layer in 0..self.layers.min(64) {
            let parts = [
                ("attn_norm.weight", [1, d]),
                ("attn_q.weight", [q, d]),
                ("attn_k.weight", [kv, d]),
                ("attn_v.weight", [kv, d]),
                ("attn_output.weight", [d, q]),
                ("ffn_norm.weight", [1, d]),
                ("ffn_gate.weight", [ff, d]),
                ("ffn_up.weight", [ff, d]),
                ("ffn_down.weight", [d, ff]),
            ];
            let own: &[_] = match self.arch {
                "qwen2" => &[("attn_q.bias", [1, q]), ("attn_k.bias", [1, kv]), ("attn_v.bias", [1, kv])],
                "qwen3" => &[("attn_q_norm.weight", [1, dim]), ("attn_k_norm.weight", [1, dim])],
                _ => &[],
            };
            let named = parts.iter().chain(own);
            tensors.extend(named.map(|&(name, shape)| (format!("blk.{layer}.{name}"), shape)));
        }
        tensors
    }

    fn is_small(&self) -> bool {
        let elements = |[rows, cols]: [u64; 2]| rows.saturating_mul(cols);
        let tensors = self.tensors();
        tensors.iter().fold(0u64, |sum, (_, shape)| sum.saturating_add(elements(*shape))) <= ELEMENTS_MAX
    }

    /// A file with this metadata and the tensors of `weights`.
    fn file(&self, weights: &Shape, ty: WeightType) -> Vec<u8> {
        let key = |name: &str| format!("{}.{name}", self.arch);
        let mut writer = GgufWriter::new();
        writer
            .text("general.architecture", self.arch)
            .u32(&key("block_count"), self.layers)
            .u32(&key("embedding_length"), self.d_model)
            .u32(&key("feed_forward_length"), self.d_ff)
            .u32(&key("attention.head_count"), self.heads)
            .u32(&key("attention.head_count_kv"), self.kv_heads)
            .u32(&key("attention.key_length"), self.head_dim)
            .u32(&key("attention.value_length"), self.head_dim)
            .u32(&key("context_length"), self.context)
            .u32(&key("rope.dimension_count"), self.rope_dims)
            .f32(&key("attention.layer_norm_rms_epsilon"), self.norm_eps)
            .f32(&key("rope.freq_base"), self.theta)
            .text(&key("rope.scaling.type"), self.scaling)
            .f32(&key("rope.scaling.factor"), self.factor)
            .text("tokenizer.ggml.model", "llama");
        let tokens: Vec<String> = (0..self.vocab.min(1 << 16)).map(|i| format!("t{i}")).collect();
        writer.texts("tokenizer.ggml.tokens", &tokens);
        writer.f32s("tokenizer.ggml.scores", &vec![0.0; tokens.len()]);
        for (name, [rows, cols]) in weights.tensors() {
            let (rows, cols) = (rows as usize, cols as usize);
            let ty = if cols.is_multiple_of(ty.block_len()) && rows > 1 { ty } else { WeightType::F32 };
            writer.tensor(&name, ty, &[rows, cols], &numbers(ty, rows, cols));
        }
        writer.to_bytes()
    }
}

/// Weights of ordinary size in any type: zeros would hide reads at a wrong index.
fn numbers(ty: WeightType, rows: usize, cols: usize) -> Vec<u8> {
    let values: Vec<f32> = (0..rows * cols).map(|i| ((i * 37 % 101) as f32 - 50.0) / 100.0).collect();
    let mut bytes = vec![0; ty.row_bytes(cols).unwrap_or(0) * rows];
    quantize(ty, &values, &mut bytes);
    bytes
}

fn loaded(file: Vec<u8>, pool: &Pool) -> Result<Model, String> {
    let loaded = LoadedModel::from_bytes(FileBytes::Owned(file)).map_err(|error| error.to_string())?;
    Model::load(loaded.config, loaded.tensors, None, pool, &|_, _| {}).map_err(|error| error.to_string())
}

/// Opens, loads and computes: the logits of a prompt and of one token after it.
fn logits(file: Vec<u8>, kv: KvFormat) -> Result<Vec<f32>, String> {
    let pool = Pool::new(1);
    let model = loaded(file, &pool)?;
    let (vocab, context) = (model.config().vocab, model.config().context.min(40));
    let layout = ModelRunner::uniform_layout(model.config(), kv);
    let blocks = context.div_ceil(BLOCK_POSITIONS);
    let mut runner = ModelRunner::new(Arc::new(model), pool, layout, blocks, context).unwrap();
    let table: Vec<BlockId> = (0..blocks as u32).map(BlockId).collect();
    let row = |position: usize| Row {
        sequence: 0,
        token: (position % vocab) as Token,
        position: position as u32,
        cache_position: position as u32,
        output: Output::logits_if(position + 2 >= context),
    };
    let rows: Vec<Row> = (0..context).map(row).collect();
    let (prompt, last) = rows.split_at(context - 1);
    let mut logits = Vec::new();
    for rows in [prompt, last].into_iter().filter(|rows| !rows.is_empty()) {
        logits.extend(runner.forward(&Batch { rows, sequences: &[SequenceKv::in_blocks(&table)] }, &mut []));
    }
    assert_eq!(logits.len(), vocab * context.min(2));
    Ok(logits)
}

/// A shape with up to three changed numbers.
fn shape() -> impl Strategy<Value = Shape> {
    const NUMBERS: [u32; 30] = [
        0,
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        9,
        10,
        12,
        14,
        15,
        16,
        18,
        24,
        30,
        32,
        34,
        64,
        96,
        100,
        128,
        255,
        256,
        258,
        1024,
        65_537,
        u32::MAX,
    ];
    const REALS: [f32; 12] = [0.0, -1.0, 1e-6, 1e-5, 0.5, 1.0, 2.0, 1e4, 1e12, 1e30, f32::INFINITY, f32::NAN];
    let number = || prop::sample::select(NUMBERS.to_vec());
    let change = (0..14_usize, number(), prop::sample::select(REALS.to_vec()));
    (prop::sample::select(vec!["llama", "qwen2", "qwen3"]), prop::collection::vec(change, 0..4)).prop_map(
        |(arch, changes)| {
            let mut shape = Shape { arch, ..VALID };
            for (field, number, real) in changes {
                match field {
                    0 => shape.layers = number,
                    1 => shape.d_model = number,
                    2 => shape.d_ff = number,
                    3 => shape.heads = number,
                    4 => shape.kv_heads = number,
                    5 => (shape.head_dim, shape.rope_dims) = (number, number),
                    6 => shape.head_dim = number,
                    7 => shape.vocab = number,
                    8 => shape.context = number,
                    9 => shape.rope_dims = number,
                    10 => shape.norm_eps = real,
                    11 => shape.theta = real,
                    12 => (shape.scaling, shape.factor) = ("linear", real),
                    _ => (shape.scaling, shape.factor) = ("yarn", real),
                }
            }
            shape
        },
    )
}

#[test]
fn a_shape_is_refused_or_computes() {
    let (computed, refused) = (Cell::new(0), Cell::new(0));
    let types = prop::sample::select(vec![WeightType::F32, WeightType::F16, WeightType::Q8_0]);
    let formats = prop::sample::select(KvFormat::ALL.to_vec());
    let config = ProptestConfig { cases: 600, failure_persistence: None, ..Default::default() };
    proptest!(config, |(shape in shape(), ty in types, kv in formats)| {
        let weights = if shape.is_small() { &shape } else { &VALID };
        match logits(shape.file(weights, ty), kv) {
            Ok(logits) => {
                // Without an epsilon the norm of zeros is not a number, which is correct.
                prop_assert!(shape.norm_eps < 1e-6 || logits.iter().all(|x| x.is_finite()));
                computed.set(computed.get() + 1);
            }
            Err(error) => {
                prop_assert_ne!(&shape, &Shape { arch: shape.arch, ..VALID }, "{}", error);
                refused.set(refused.get() + 1);
            }
        }
    });
    // Otherwise the shapes are all of one kind, and the test proves nothing.
    assert!(computed.get() > 100 && refused.get() > 100, "{computed:?} computed, {refused:?} refused");
}

/// The shapes at the limits, one by one.
#[test]
fn shapes_at_the_limits_are_accepted_or_refused() {
    let computes = |shape: Shape| {
        for kv in KvFormat::ALL {
            logits(shape.file(&shape, WeightType::F32), kv).unwrap();
        }
    };
    let refused = |shape: Shape, word: &str| {
        let error = logits(shape.file(&VALID, WeightType::F32), KvFormat::F16).unwrap_err();
        assert!(error.contains(word), "{error:?} does not contain {word:?}");
    };
    for dim in [8, 10, 24, 30, 100, 254, 256, 258, 512, 576] {
        computes(Shape { head_dim: dim, rope_dims: dim, ..VALID });
        computes(Shape { head_dim: dim, rope_dims: 2, ..VALID });
    }
    for dim in [0, 2, 6, 9, 257, 577, 578, 1024, 1026] {
        refused(Shape { head_dim: dim, rope_dims: dim.min(8), ..VALID }, "head dimension");
    }
    computes(Shape { d_model: 1, d_ff: 1, heads: 1, kv_heads: 1, vocab: 1, context: 1, layers: 1, ..VALID });
    refused(Shape { layers: 0, ..VALID }, "number of layers");
    refused(Shape { layers: 2000, ..VALID }, "number of layers");
    refused(Shape { d_model: 0, ..VALID }, "embedding length");
    refused(Shape { d_ff: 0, ..VALID }, "feed-forward length");
    refused(Shape { heads: 0, ..VALID }, "heads");
    refused(Shape { kv_heads: 3, ..VALID }, "divisor of the 4 heads");
    refused(Shape { context: 0, ..VALID }, "context length");
    refused(Shape { context: u32::MAX, ..VALID }, "context length");
}

#[test]
fn the_largest_bias_of_the_keys_of_each_layer() {
    for (arch, expect) in [("llama", 0.0), ("qwen3", 0.0), ("qwen2", 0.5)] {
        let shape = Shape { arch, ..VALID };
        let model = loaded(shape.file(&shape, WeightType::F32), &Pool::new(1)).unwrap();
        assert_eq!(model.key_biases(), [expect; 2], "{arch}");
    }
}
