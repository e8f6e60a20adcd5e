//! Adapters of random numbers, as files.

#![allow(unreachable_pub, dead_code, clippy::unwrap_used)] // shared by tests that use different parts of it

use kvik_kernels::{WeightType, quantize};
use kvik_model::ModelConfig;
use kvik_testing::mix;
use kvik_text::files::gguf::write::GgufWriter;

/// What an adapter of random numbers is like.
#[derive(Debug, Clone, Copy)]
pub struct RandomAdapter {
    pub seed: u64,
    pub rank: usize,
    pub alpha: f32,
    pub ty: WeightType,
    /// Whether it changes the output matrix too.
    pub output: bool,
}

impl RandomAdapter {
    /// One that changes all matrices of all layers.
    pub fn new(seed: u64, rank: usize) -> RandomAdapter {
        RandomAdapter { seed, rank, alpha: 2.0 * rank as f32, ty: WeightType::F32, output: false }
    }

    /// Its file, for a model of this shape.
    pub fn file(&self, config: &ModelConfig) -> Vec<u8> {
        let mut writer = head(config, self.alpha);
        for (name, rows, cols) in self.matrices(config) {
            self.pair(&mut writer, &name, [rows, cols]);
        }
        writer.to_bytes()
    }

    /// The matrices that it changes: name, rows, columns.
    pub fn matrices(&self, config: &ModelConfig) -> Vec<(String, usize, usize)> {
        let d = config.d_model;
        let mut parts = attention(config);
        // In these files gate and up are one tensor.
        match config.arch.name() {
            "glm4" | "phi3" => parts.push(("ffn_up", 2 * config.d_ff, d)),
            _ => parts.extend([("ffn_gate", config.d_ff, d), ("ffn_up", config.d_ff, d)]),
        }
        parts.push(("ffn_down", d, config.d_ff));
        let layers = (0..config.layers).flat_map(|layer| {
            let named = |&(name, rows, cols): &_| (format!("blk.{layer}.{name}.weight"), rows, cols);
            parts.iter().map(named).collect::<Vec<_>>()
        });
        let output = self.output.then(|| ("output.weight".to_owned(), config.vocab, d));
        layers.chain(output).collect()
    }

    /// The values of both tensors beside a matrix: `[rank, cols]` and `[rows, rank]`.
    pub fn values(&self, name: &str, [rows, cols]: [usize; 2]) -> [Vec<f32>; 2] {
        let seed = name.bytes().fold(self.seed, |seed, byte| mix(seed ^ u64::from(byte)));
        let values = |seed: u64, count: usize, width: usize| -> Vec<f32> {
            let value = |index| (mix(seed ^ mix(index)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
            (0..count as u64).map(|index| value(index) / (width as f32).sqrt()).collect()
        };
        [values(seed, self.rank * cols, cols), values(!seed, rows * self.rank, self.rank)]
    }

    /// Adds the pair for one matrix to a file.
    pub fn pair(&self, writer: &mut GgufWriter, name: &str, [rows, cols]: [usize; 2]) {
        let [a, b] = self.values(name, [rows, cols]);
        writer.tensor(&format!("{name}.lora_a"), self.ty, &[self.rank, cols], &bytes(self.ty, &a));
        writer.tensor(&format!("{name}.lora_b"), self.ty, &[rows, self.rank], &bytes(self.ty, &b));
    }
}

/// The matrices of the attention of a layer that adapters can change.
fn attention(config: &ModelConfig) -> Vec<(&'static str, usize, usize)> {
    let (d, q, kv) = (config.d_model, config.heads * config.head_dim, config.kv_heads * config.head_dim);
    if config.arch.name() == "phi3" {
        // Queries, keys and values are one tensor, which adapters cannot change.
        return vec![("attn_output", d, q)];
    }
    let Some(latent) = config.extras.latent else {
        return vec![("attn_q", q, d), ("attn_k", kv, d), ("attn_v", kv, d), ("attn_output", d, q)];
    };
    vec![
        ("attn_q_a", latent.query_rank, d),
        ("attn_q_b", config.heads * (latent.unrotated + latent.rotated), latent.query_rank),
        ("attn_kv_a_mqa", latent.key_dim(), d),
        ("attn_output", d, config.heads * latent.value),
    ]
}

/// The metadata of an adapter for a model of this shape.
pub fn head(config: &ModelConfig, alpha: f32) -> GgufWriter {
    let mut writer = GgufWriter::new();
    writer.text("general.type", "adapter").text("adapter.type", "lora");
    writer.text("general.architecture", config.arch.name()).f32("adapter.lora.alpha", alpha);
    writer
}

/// Values as they stand in a file.
pub fn bytes(ty: WeightType, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; ty.row_bytes(values.len()).expect("whole blocks")];
    quantize(ty, values, &mut bytes);
    bytes
}
