//! Models in published shapes with random weights: speed and memory depend on shapes and formats, not on the numbers, so
//! `kvik bench --shape` measures a model that nobody has downloaded.
//!
//! Blocks are written as random bits with scales that give the numbers a usual size, gigabytes in seconds.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, bail};
use clap::ValueEnum;
use kvik_kernels::WeightType;
use kvik_serving::settings::model::WeightsArg;
use kvik_text::files::gguf::write::GgufWriter;

/// Published shapes, and small ones to try with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ShapeArg {
    /// Qwen3 0.6B
    #[value(name = "qwen3-0.6b")]
    Qwen3Half,
    /// Qwen3 1.7B
    #[value(name = "qwen3-1.7b")]
    Qwen3Two,
    /// Qwen3 4B
    #[value(name = "qwen3-4b")]
    Qwen3Four,
    /// Qwen3 with four layers of 512 and a vocabulary of 8,192
    #[value(name = "qwen3-small")]
    Small,
    /// Qwen3 with two layers of 256 and a vocabulary of 2,048
    #[value(name = "qwen3-tiny")]
    Tiny,
}

/// The numbers of a shape, whose output matrix is its embedding.
#[derive(Debug, Clone, Copy)]
struct Shape {
    layers: usize,
    d_model: usize,
    d_ff: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    vocab: usize,
    context: usize,
}

/// A tensor of the model.
struct Tensor {
    name: String,
    ty: WeightType,
    /// `[rows, cols]`, or `[d]` of a norm.
    shape: Vec<usize>,
    /// Numbers are divided by `2^shift`: those added to the stream in every layer are smaller.
    shift: u8,
}

impl ShapeArg {
    fn shape(self) -> Shape {
        let qwen3 = |layers, [d_model, d_ff]: [usize; 2], heads| Shape {
            layers,
            d_model,
            d_ff,
            heads,
            kv_heads: 8,
            head_dim: 128,
            vocab: 151_936,
            context: 40_960,
        };
        match self {
            ShapeArg::Qwen3Half => qwen3(28, [1024, 3072], 16),
            ShapeArg::Qwen3Two => qwen3(28, [2048, 6144], 16),
            ShapeArg::Qwen3Four => qwen3(36, [2560, 9728], 32),
            ShapeArg::Small => {
                let shape = qwen3(4, [512, 1536], 8);
                Shape { kv_heads: 4, head_dim: 64, vocab: 8_192, ..shape }
            }
            ShapeArg::Tiny => {
                let shape = qwen3(2, [256, 768], 4);
                Shape { kv_heads: 2, head_dim: 64, vocab: 2_048, ..shape }
            }
        }
    }

    /// Its name on the command line.
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Whether a matrix has six bits in the mix of four-bit files: as llama.cpp's `use_more_bits`, the first and the last
/// eighth of the layers, and every third one between.
fn has_more_bits(layer: usize, layers: usize) -> bool {
    layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2
}

/// The type of a matrix in files of a format.
fn type_of(format: WeightsArg, name: &str, (layer, layers): (usize, usize)) -> anyhow::Result<WeightType> {
    let is_sensitive =
        name == "token_embd" || ["attn_v", "ffn_down"].contains(&name) && has_more_bits(layer, layers);
    Ok(match format {
        WeightsArg::Q4KM if is_sensitive => WeightType::Q6K,
        WeightsArg::Q4KM => WeightType::Q4K,
        WeightsArg::Q8 => WeightType::Q8_0,
        WeightsArg::F16 => WeightType::F16,
        other => bail!("--shape makes models in q4_k_m, q8_0 and f16, not in {other:?}"),
    })
}

/// All tensors of a model, in the order of the file.
fn tensors(shape: &Shape, format: WeightsArg) -> anyhow::Result<Vec<Tensor>> {
    let Shape { layers, d_model, d_ff, heads, kv_heads, head_dim, vocab, .. } = *shape;
    let norm = |name: String, d| Tensor { name, ty: WeightType::F32, shape: vec![d], shift: 0 };
    let embedding = type_of(format, "token_embd", (0, layers))?;
    let mut tensors = vec![
        Tensor { name: "token_embd.weight".to_owned(), ty: embedding, shape: vec![vocab, d_model], shift: 0 },
        norm("output_norm.weight".to_owned(), d_model),
    ];
    for layer in 0..layers {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        for (part, d) in [
            ("attn_norm", d_model),
            ("attn_q_norm", head_dim),
            ("attn_k_norm", head_dim),
            ("ffn_norm", d_model),
        ] {
            tensors.push(norm(name(part), d));
        }
        for (part, rows, cols, shift) in [
            ("attn_q", heads * head_dim, d_model, 0),
            ("attn_k", kv_heads * head_dim, d_model, 0),
            ("attn_v", kv_heads * head_dim, d_model, 0),
            ("attn_output", d_model, heads * head_dim, 3),
            ("ffn_gate", d_ff, d_model, 0),
            ("ffn_up", d_ff, d_model, 0),
            ("ffn_down", d_model, d_ff, 3),
        ] {
            let ty = type_of(format, part, (layer, layers))?;
            tensors.push(Tensor { name: name(part), ty, shape: vec![rows, cols], shift });
        }
    }
    Ok(tensors)
}

impl Tensor {
    fn bytes(&self) -> u64 {
        let [rows, cols] = [self.shape.iter().rev().skip(1).product(), self.shape[self.shape.len() - 1]];
        (rows * self.ty.row_bytes(cols).expect("rows of whole blocks")) as u64
    }

    /// Writes its data.
    fn write(&self, random: &mut Random, out: &mut impl Write) -> std::io::Result<()> {
        /// Bytes made at a time.
        const PART: usize = 1 << 20;
        let block = self.ty.block_bytes();
        let mut left = self.bytes() as usize;
        while left > 0 {
            let mut part = vec![0; left.min(PART / block * block)];
            random.fill(&mut part);
            part.chunks_exact_mut(block).for_each(|block| shape_block(self.ty, block, self.shift));
            out.write_all(&part)?;
            left -= part.len();
        }
        let padding = (self.bytes().next_multiple_of(GgufWriter::ALIGNMENT as u64) - self.bytes()) as usize;
        out.write_all(&vec![0; padding])
    }
}

/// Turns random bits into a block whose numbers have a deviation of about 0.02, divided by `2^shift`.
fn shape_block(ty: WeightType, block: &mut [u8], shift: u8) {
    // 2^-exponent, and that times 1 + mantissa / 1024, as a half float.
    let half = |exponent: u16, mantissa: u16| ((15 - exponent) << 10 | mantissa).to_le_bytes();
    match ty {
        WeightType::F32 => block.copy_from_slice(&1f32.to_le_bytes()),
        // A sign and ten digits of a number from 2^-6 to 2^-5.
        WeightType::F16 => {
            let bits = u16::from_le_bytes([block[0], block[1]]) & 0x83ff | u16::from(9 - shift) << 10;
            block.copy_from_slice(&bits.to_le_bytes());
        }
        // 8 bits have a deviation of 74.
        WeightType::Q8_0 => {
            block[..2].copy_from_slice(&half(12, 0));
            block[2..].iter_mut().for_each(|code| *code = (code.cast_signed() >> shift).cast_unsigned());
        }
        // Four bits have a deviation of 4.6; every scale and every minimum is 32, in units of which 15 / 2 center them.
        WeightType::Q4K => {
            let scale = 32 >> shift;
            block[..2].copy_from_slice(&half(13, 0));
            block[2..4].copy_from_slice(&half(11, 0x380));
            block[4..12].fill(scale | scale >> 4 << 6);
            block[12..16].fill((scale & 15) * 17);
        }
        // Six bits have a deviation of 18, and a scale is 16.
        WeightType::Q6K => {
            block[192..208].fill(16 >> shift);
            block[208..210].copy_from_slice(&half(14, 0));
        }
        _ => unreachable!("`type_of` chooses no other type"),
    }
}

/// Random bits: SplitMix64 from a fixed seed, so that every file of a shape is the same.
struct Random(u64);

impl Random {
    fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.chunks_mut(8) {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes()[..word.len()]);
        }
    }
}

/// The keys of the file: the shape, and a vocabulary of single bytes and of tokens that no text has.
fn keys(shape: &Shape, name: &str) -> GgufWriter {
    let Shape { layers, d_model, d_ff, heads, kv_heads, head_dim, vocab, context } = *shape;
    let mut writer = GgufWriter::new();
    writer.text("general.architecture", "qwen3").text("general.name", &format!("{name} random"));
    for (key, value) in [
        ("block_count", layers),
        ("context_length", context),
        ("embedding_length", d_model),
        ("feed_forward_length", d_ff),
        ("attention.head_count", heads),
        ("attention.head_count_kv", kv_heads),
        ("attention.key_length", head_dim),
        ("attention.value_length", head_dim),
    ] {
        writer.u32(&format!("qwen3.{key}"), value as u32);
    }
    writer.f32("qwen3.rope.freq_base", 1e6).f32("qwen3.attention.layer_norm_rms_epsilon", 1e-6);
    let mut tokens: Vec<String> = byte_tokens().map(String::from).collect();
    tokens.push("ab".to_owned());
    let mut types = vec![NORMAL; tokens.len()];
    tokens.extend((tokens.len()..vocab).map(|number| format!("[PAD{number}]")));
    types.resize(vocab, UNUSED);
    writer.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "qwen2");
    writer.texts("tokenizer.ggml.tokens", &tokens).i32s("tokenizer.ggml.token_type", &types);
    writer.texts("tokenizer.ggml.merges", &["a b"]);
    writer.u32("tokenizer.ggml.eos_token_id", vocab as u32 - 1);
    writer.boolean("tokenizer.ggml.add_bos_token", false);
    writer
}

/// Types of tokens in GGUF.
const NORMAL: i32 = 1;
const UNUSED: i32 = 5;

/// The characters by which byte-level vocabularies spell bytes: printable ones are themselves, the others follow 255.
fn byte_tokens() -> impl Iterator<Item = char> {
    let is_itself = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let others = (0..256).filter(move |&byte| !is_itself(byte)).zip(256..).map(|(_, code)| code);
    (0..256).filter(move |&byte| is_itself(byte)).chain(others).filter_map(char::from_u32)
}

/// Writes a model of a shape, in q4_k_m unless the flags name another format.
pub(super) fn write(shape: ShapeArg, format: Option<WeightsArg>, path: &Path) -> anyhow::Result<()> {
    let (name, shape) = (shape.name(), shape.shape());
    let tensors = tensors(&shape, format.unwrap_or(WeightsArg::Q4KM))?;
    let mut writer = keys(&shape, &name);
    for tensor in &tensors {
        writer.declare(&tensor.name, tensor.ty, &tensor.shape, tensor.bytes());
    }
    let cannot = || format!("a model cannot be written to {}", path.display());
    let mut out = BufWriter::new(File::create(path).with_context(cannot)?);
    let mut random = Random(1);
    out.write_all(&writer.to_bytes())
        .and_then(|()| tensors.iter().try_for_each(|tensor| tensor.write(&mut random, &mut out)))
        .and_then(|()| out.flush())
        .with_context(cannot)
}

#[cfg(test)]
mod tests {
    use kvik_kernels::dequantize;
    use kvik_model::load::LoadedModel;

    use super::*;

    #[test]
    fn blocks_have_numbers_of_a_usual_size() {
        for ty in [WeightType::F16, WeightType::Q8_0, WeightType::Q4K, WeightType::Q6K] {
            for (shift, size) in [(0, 0.02), (3, 0.0025)] {
                let mut raw = vec![0; 64 * ty.block_bytes()];
                Random(7).fill(&mut raw);
                raw.chunks_exact_mut(ty.block_bytes()).for_each(|block| shape_block(ty, block, shift));
                let mut values = vec![0.0; 64 * ty.block_len()];
                dequantize(ty, &raw, &mut values);
                let mean = values.iter().sum::<f32>() / values.len() as f32;
                let deviation = (values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32).sqrt();
                assert!(mean.abs() < size / 4.0, "{} {shift}: {mean}", ty.name());
                assert!((size * 0.7..size * 1.4).contains(&deviation), "{} {shift}: {deviation}", ty.name());
            }
        }
    }

    #[test]
    fn files_load_and_have_the_formats_of_the_mix() {
        let dir = tempfile::tempdir().unwrap();
        for (format, types) in [
            (None, [WeightType::Q4K, WeightType::Q6K]),
            (Some(WeightsArg::Q8), [WeightType::Q8_0; 2]),
            (Some(WeightsArg::F16), [WeightType::F16; 2]),
        ] {
            let path = dir.path().join("model.gguf");
            write(ShapeArg::Tiny, format, &path).unwrap();
            let loaded = LoadedModel::open(&path).unwrap();
            assert_eq!((loaded.config.layers, loaded.config.vocab), (2, 2_048));
            let found = ["ffn_up", "ffn_down"]
                .map(|part| loaded.tensors.get(&format!("blk.1.{part}.weight")).unwrap().ty);
            assert_eq!(found, types);
            assert_eq!(loaded.tokenizer.encode("ab c", false, false).len(), 3);
        }
        assert!(write(ShapeArg::Tiny, Some(WeightsArg::Q4), &dir.path().join("x")).is_err());
    }

    /// llama.cpp's mix of a model of 28 layers.
    #[test]
    fn half_of_the_layers_have_more_bits() {
        let more: Vec<usize> = (0..28).filter(|&layer| has_more_bits(layer, 28)).collect();
        assert_eq!(more, [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27]);
        let shape = ShapeArg::Qwen3Half.shape();
        let bytes: u64 = tensors(&shape, WeightsArg::Q4KM).unwrap().iter().map(Tensor::bytes).sum();
        assert!((390_000_000..392_000_000).contains(&bytes), "{bytes}");
    }
}
