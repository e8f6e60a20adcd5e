//! The tensors of a model: every tensor of its file is one of these, or the model is refused.
//!
//! A missing tensor changes the answers silently, so none is ever skipped here. Tensors that a file may hold but no
//! computation reads (buffers that follow from the configuration, the second copy of a tied embedding) are left out by
//! the reader of that kind of file, by name.

use std::collections::BTreeSet;

use kvik_text::files::{TensorSource, TensorView};

use super::arch::{LayerShape, MixingShape, QkNorm, Values};
use super::layer_tensor::{
    HEAD_EMBEDDING, HEAD_EMBEDDING_NORM, HEAD_HIDDEN_NORM, HEAD_JOIN, HEAD_NORM, HEAD_OUTPUT, LayerTensor,
    Presence, is_stack, part_of_stack, transposed_stack,
};
use super::recurrent::is_recurrent;
use super::{ModelConfig, ModelError, RopeScaling, latent, residual};

/// The output tensor of a reranker: a row for yes, then one for no, as llama.cpp writes it for Qwen3-Reranker.
pub(super) const CLASSIFIER: &str = "cls.output.weight";
/// Number of its rows.
const CLASSIFIER_ROWS: usize = 2;

/// Maximum number of unused tensors that an error names.
const NAMED_MAX: usize = 4;

/// A tensor of a model, by its canonical name.
struct Expected {
    name: String,
    rows: usize,
    cols: usize,
    presence: Presence,
}

/// Names of the tensors from which the model is loaded: all required ones, and the optional ones that the file has.
/// Checks that their shapes are those of the configuration, and that the file has no others.
pub(super) fn check(config: &ModelConfig, tensors: &TensorSource) -> Result<BTreeSet<String>, ModelError> {
    let names = present(expected(config, Some(tensors)), tensors)?;
    refuse_unused(config, tensors, &names)?;
    Ok(names)
}

/// The names of the expected tensors that the file has, each in its shape, and of all required ones.
fn present(all: Vec<Expected>, tensors: &TensorSource) -> Result<BTreeSet<String>, ModelError> {
    let mut names = BTreeSet::new();
    for expected in all {
        match tensors.get(&expected.name) {
            Some(view) => check_shape(&expected, &view)?,
            None if expected.presence == Presence::Required => {
                return Err(ModelError::MissingTensor { tensor: expected.name });
            }
            None => continue,
        }
        names.insert(expected.name);
    }
    Ok(names)
}

/// RoPE divisors that are read with the configuration.
pub(super) const ROPE_FACTORS: [&str; 2] = ["rope_factors_long.weight", "rope_factors_short.weight"];

/// The projections to queries, keys and values in one tensor, row by row, if a file stores them so.
pub(super) const FUSED_QKV: &str = "attn_qkv";

/// Tensors that files may have for a layer that reads the keys and values of another, and that the forward pass does
/// not read.
pub(super) const UNREAD: [&str; 3] = ["attn_k.weight", "attn_v.weight", "attn_k_norm.weight"];

/// Every tensor that the forward pass of this configuration can read, in the forms in which `tensors` stores them.
fn expected(config: &ModelConfig, tensors: Option<&TensorSource>) -> Vec<Expected> {
    let mut list = List::default();
    let d = config.d_model;
    list.add("token_embd.weight", config.vocab, d, Presence::Required);
    list.add(config.arch.output_norm(), 1, d, Presence::Required);
    // Without it the embedding is the output matrix.
    list.add("output.weight", config.vocab, d, Presence::Optional);
    // Rerankers only: the rows of the output matrix for yes and no.
    list.add(CLASSIFIER, CLASSIFIER_ROWS, d, Presence::Optional);
    list.add("rope_freqs.weight", 1, config.rope.dims / 2, Presence::Optional);
    if let RopeScaling::Long { .. } = config.rope.scaling {
        // Their numbers are in the configuration.
        ROPE_FACTORS.iter().for_each(|name| list.add(name, 1, config.rope.dims / 2, Presence::Optional));
    }
    let has = |name: &str| tensors.is_some_and(|tensors| tensors.get(name).is_some());
    let table_rows = config.extras.per_layer_rows.unwrap_or(config.vocab);
    for tensor in config.residual().model_tensors([table_rows, config.layers, d]) {
        list.stack(tensor, config.residual().stack_len(tensor.0), has);
    }
    for layer in 0..config.layers {
        list.layer(config, (layer, &config.layer(layer)), has);
    }
    list.tensors
}

/// Names of the tensors from which the prediction head is loaded, by the rules of [`check`].
///
/// # Errors
/// If a required one is missing, or one has another shape.
pub(super) fn check_head(
    config: &ModelConfig,
    tensors: &TensorSource,
) -> Result<BTreeSet<String>, ModelError> {
    let (d, head) = (config.d_model, config.layers);
    let mut list = List { prefix: format!("blk.{head}."), ..List::default() };
    list.add(HEAD_JOIN, d, 2 * d, Presence::Required);
    list.add(HEAD_EMBEDDING_NORM, 1, d, Presence::Required);
    list.add(HEAD_HIDDEN_NORM, 1, d, Presence::Required);
    // Without them the model's own are used.
    list.add(HEAD_NORM, 1, d, Presence::Optional);
    list.add(HEAD_EMBEDDING, config.vocab, d, Presence::Optional);
    list.add(HEAD_OUTPUT, config.vocab, d, Presence::Optional);
    list.layer(config, (head, &config.head_layer()), |name| tensors.get(name).is_some());
    present(list.tensors, tensors)
}

/// The matrices that the forward pass multiplies all rows by: name, rows, columns. Includes the output matrix, even if
/// a file leaves it out; excludes those of experts, which multiply only some rows, those that are multiplied into
/// queries and outputs, and the classifier, which takes the place of the output matrix in ranking only.
pub(super) fn matrices(config: &ModelConfig) -> Vec<(String, usize, usize)> {
    let is_matrix = |name: &str| {
        let part =
            name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map_or(name, |(_, part)| part);
        let looked_up = part.contains("norm") || part == SINKS || LOOKED_UP.contains(&name);
        let shares = layer_of(name).is_some_and(|layer| config.layer(layer).source.is_some());
        let unread = shares && UNREAD.contains(&part);
        let is_other =
            is_stack(name) || is_recurrent(part) || latent::is_absorbed(name) || residual::is_part(part);
        name.ends_with(".weight") && !looked_up && !unread && !is_other
    };
    let all = expected(config, None).into_iter().filter(|tensor| is_matrix(&tensor.name));
    all.map(|Expected { name, rows, cols, .. }| (name, rows, cols)).collect()
}

/// Maximum number of matrices of a stack that are looked up one by one.
const PARTS_MAX: usize = 4096;

/// Tensors that rows are not multiplied by.
const LOOKED_UP: [&str; 5] =
    ["token_embd.weight", "rope_freqs.weight", ROPE_FACTORS[0], ROPE_FACTORS[1], CLASSIFIER];

/// The logits of the sinks of attention, one of each head.
const SINKS: &str = "attn_sinks.weight";

/// Collects tensors under one prefix.
#[derive(Default)]
struct List {
    prefix: String,
    tensors: Vec<Expected>,
}

impl List {
    fn named(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn add(&mut self, name: &str, rows: usize, cols: usize, presence: Presence) {
        if presence != Presence::Absent {
            let name = self.named(name);
            self.tensors.push(Expected { name, rows, cols, presence });
        }
    }

    /// Adds the tensors of a decoder layer; `has` says which tensors are in the file.
    fn layer(
        &mut self,
        config: &ModelConfig,
        (layer, shape): (usize, &LayerShape),
        has: impl Fn(&str) -> bool + Copy,
    ) {
        let d = config.d_model;
        self.prefix = format!("blk.{layer}.");
        for norm in shape.norm_names() {
            self.add(norm, 1, d, Presence::Required);
        }
        match shape.mixing {
            MixingShape::Attention => {
                self.attention(shape, d, |part| has(&format!("blk.{layer}.{part}")));
            }
            MixingShape::Recurrent(recurrent) => {
                let (output, cols) = recurrent.output(d);
                self.add(output, d, cols, Presence::Required);
                for (name, rows, cols, presence) in recurrent.tensors(d) {
                    self.add(name, rows, cols, presence);
                }
            }
            MixingShape::Absent => {}
        }
        let experts = config.extras.experts.map(|experts| experts.count);
        for tensor in shape.feed_forward.tensors(d).into_iter().chain(shape.residual.tensors(d)) {
            self.stack(tensor, experts.filter(|_| is_stack(tensor.0)), has);
        }
    }

    /// Adds a tensor that is a stack of `count` matrices, if `count` is given, in the form that the file `has`.
    fn stack(&mut self, tensor: LayerTensor, count: Option<usize>, has: impl Fn(&str) -> bool) {
        let (name, rows, cols, presence) = tensor;
        match count.filter(|&count| count > 0) {
            // The first may be the missing one.
            Some(count) if (0..2).any(|index| has(&self.named(&part_of_stack(name, index)))) => {
                // More experts than the limit are refused when they are loaded.
                for index in 0..count.min(PARTS_MAX) {
                    self.add(&part_of_stack(name, index), rows / count, cols, Presence::Required);
                }
            }
            Some(count) if has(&self.named(&transposed_stack(name))) => {
                self.add(&transposed_stack(name), count.saturating_mul(cols), rows / count, presence);
            }
            _ => self.add(name, rows, cols, presence),
        }
    }

    /// Adds the tensors of attention; `has` says which tensors of the layer are in the file, some of which are fused.
    fn attention(&mut self, shape: &LayerShape, d: usize, has: impl Fn(&str) -> bool) {
        let dim = shape.head_dim;
        let (q, kv) = (shape.heads * dim, shape.kv_heads * dim);
        let (norm, [q_norm, k_norm]) = match shape.qk_norm {
            QkNorm::Absent | QkNorm::Rotated => (Presence::Absent, [0, 0]),
            QkNorm::Head(presence) => (presence, [dim, dim]),
            QkNorm::All(presence) => (presence, [q, kv]),
        };
        self.add(SINKS, 1, shape.heads, shape.sinks);
        self.add("attn_q_norm.weight", 1, q_norm, norm);
        let own = |presence| if shape.source.is_some() { Presence::Optional } else { presence };
        self.add("attn_k_norm.weight", 1, k_norm, own(norm));
        if let Some(latent) = shape.latent {
            for (name, rows, cols, presence) in latent.tensors(d, shape.heads, has(latent::FUSED)) {
                self.add(name, rows, cols, presence);
            }
        } else if has(&format!("{FUSED_QKV}.weight")) {
            self.linear(FUSED_QKV, shape.q_rows() + 2 * kv, d, shape.qkv_bias);
        } else {
            self.linear("attn_q", shape.q_rows(), d, shape.qkv_bias);
            let value = match shape.values {
                Values::Projected => Presence::Required,
                Values::Normed { projection } => projection,
            };
            self.part("attn_k", (kv, d), own(Presence::Required), shape.qkv_bias);
            self.part("attn_v", (kv, d), own(value), shape.qkv_bias);
        }
        self.linear("attn_output", d, shape.heads * shape.output_dim(), shape.output_bias);
    }

    fn linear(&mut self, name: &str, rows: usize, cols: usize, bias: Presence) {
        self.part(name, (rows, cols), Presence::Required, bias);
    }

    fn part(&mut self, name: &str, (rows, cols): (usize, usize), presence: Presence, bias: Presence) {
        self.add(&format!("{name}.weight"), rows, cols, presence);
        self.add(&format!("{name}.bias"), 1, rows, bias);
    }
}

fn check_shape(expected: &Expected, view: &TensorView<'_>) -> Result<(), ModelError> {
    let whole_blocks = expected.cols.is_multiple_of(view.ty.block_len());
    if (view.rows, view.cols) == (expected.rows, expected.cols) && whole_blocks {
        return Ok(());
    }
    Err(ModelError::WrongShape {
        tensor: expected.name.clone(),
        found: [view.rows, view.cols],
        expected: [expected.rows, expected.cols],
    })
}

fn refuse_unused(
    config: &ModelConfig,
    tensors: &TensorSource,
    used: &BTreeSet<String>,
) -> Result<(), ModelError> {
    let beyond = config.beyond();
    let is_beyond = |name: &str| layer_of(name).is_some_and(|layer| beyond.contains(&layer));
    let unused: Vec<&str> =
        tensors.names().filter(|name| !used.contains(*name) && !is_beyond(name)).collect();
    if unused.is_empty() {
        return Ok(());
    }
    let explain = |name: &&str| format!("`{}` ({})", tensors.stored_name(name), why_unused(config, name));
    Err(ModelError::UnusedTensors {
        arch: config.arch.name(),
        first: unused.iter().take(NAMED_MAX).map(explain).collect(),
        count: unused.len(),
    })
}

/// The layer of a tensor, by its name.
fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// Why no computation reads a tensor.
fn why_unused(config: &ModelConfig, name: &str) -> String {
    match layer_of(name) {
        Some(layer) if layer >= config.layers => format!("the configuration has {} layers", config.layers),
        _ if name.ends_with(".bias") => "kvik adds no bias there".to_owned(),
        _ => "not a part of this architecture".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use kvik_kernels::{Pool, WeightType};
    use kvik_testing::golden;

    use super::*;
    use crate::Model;
    use crate::load::LoadedModel;
    use kvik_text::files::bytes::FileBytes;
    use kvik_text::files::gguf::Gguf;
    use kvik_text::files::gguf::write::GgufWriter;

    /// A golden file with additional tensors.
    fn with(file: &str, extra: &[&str]) -> (ModelConfig, TensorSource) {
        let loaded = LoadedModel::open(&golden(file)).unwrap();
        let mut writer = GgufWriter::new();
        for name in loaded.tensors.names() {
            let view = loaded.tensors.get(name).unwrap();
            writer.tensor(name, view.ty, &[view.rows, view.cols], view.data);
        }
        for name in extra {
            writer.tensor(name, WeightType::F32, &[1], &[0; 4]);
        }
        let file = Gguf::from_bytes(FileBytes::Owned(writer.to_bytes())).unwrap();
        (loaded.config, TensorSource::from_gguf(file))
    }

    #[test]
    fn a_tensor_that_nothing_reads_is_refused_by_name() {
        let refused = |file: &str, extra: &[&str]| {
            let (config, tensors) = with(file, extra);
            let error = Model::load(config, tensors, None, &Pool::new(1), &|_, _| {}).err();
            error.map(|error| error.to_string())
        };
        let llama = "arch-llama-gqa.gguf";
        assert_eq!(refused(llama, &[]), None);
        for extra in [
            "blk.0.ffn_gate.bias",
            "blk.0.ffn_up.bias",
            "blk.1.ffn_down.bias",
            "blk.0.attn_norm.bias",
            "output_norm.bias",
            "output.bias",
            "blk.0.attn_q_norm.weight",
            "blk.77.attn_q.weight",
            "cls.weight",
        ] {
            let error = refused(llama, &[extra]).unwrap();
            assert!(error.contains(&format!("`{extra}`")) && error.contains("llama"), "{error}");
        }
        assert!(refused("arch-qwen2.gguf", &["blk.0.attn_output.bias"]).unwrap().contains("no bias"));
        let layers = refused(llama, &["blk.77.attn_q.weight"]).unwrap();
        assert!(layers.contains("the configuration has"), "{layers}");
        let many = refused(llama, &["a", "b", "c", "d", "e", "f"]).unwrap();
        assert!(many.contains("6 tensors") && many.contains("`d`") && !many.contains("`e`"), "{many}");
    }

    /// The contribution of an adapter for them would be left out silently.
    #[test]
    fn a_layer_that_shares_keys_and_values_has_none_to_adapt() {
        let (config, tensors) = with("arch-gemma3n.gguf", &[]);
        let all = matrices(&config);
        let has = |name: &str| all.iter().any(|(other, ..)| other == name);
        assert!(has("blk.19.attn_k.weight") && has("blk.20.attn_q.weight"));
        for name in ["blk.20.attn_k.weight", "blk.22.attn_v.weight"] {
            assert!(tensors.get(name).is_some() && !has(name), "{name}");
        }
        assert!(!has("per_layer_token_embd.weight") && !has("blk.0.laurel_l.weight"));
    }

    /// The forward pass reads them as vectors, or in ranking only: an adapter for them would add nothing.
    #[test]
    fn what_multiplies_no_rows_is_not_to_adapt() {
        for (file, name) in
            [("arch-gpt-oss.gguf", "blk.0.attn_sinks.weight"), ("arch-qwen3.gguf", CLASSIFIER)]
        {
            let all = matrices(&with(file, &[]).0);
            assert!(!all.is_empty() && all.iter().all(|(other, ..)| other != name), "{name}");
        }
    }

    /// Files of Qwen3-Reranker have a classifier.
    #[test]
    fn a_classifier_has_two_rows() {
        let classifier = |rows: usize| {
            let (config, tensors) = with("arch-qwen3-tied.gguf", &[]);
            let mut writer = GgufWriter::new();
            for stored in tensors.names() {
                let view = tensors.get(stored).unwrap();
                writer.tensor(stored, view.ty, &[view.rows, view.cols], view.data);
            }
            let values: Vec<u8> = (0..rows * config.d_model).flat_map(|i| (i as f32).to_le_bytes()).collect();
            writer.tensor(CLASSIFIER, WeightType::F32, &[rows, config.d_model], &values);
            let file = Gguf::from_bytes(FileBytes::Owned(writer.to_bytes())).unwrap();
            let model = Model::load(config, TensorSource::from_gguf(file), None, &Pool::new(1), &|_, _| {});
            model.map(|model| model.classifier().map(<[f32]>::to_vec))
        };
        let rows = classifier(2).unwrap().unwrap();
        assert!(rows.iter().enumerate().all(|(i, &x)| x == i as f32) && rows.len().is_multiple_of(2));
        let refused = classifier(3).unwrap_err().to_string();
        assert!(refused.contains(CLASSIFIER) && refused.contains("[3, "), "{refused}");
    }

    #[test]
    fn optional_tensors_are_used_and_not_refused() {
        for (file, name, len) in [
            ("arch-llama-gqa.gguf", "blk.0.attn_output.bias", None),
            ("arch-llama-gqa.gguf", "rope_freqs.weight", Some(())),
            ("arch-qwen3.gguf", "blk.1.attn_output.bias", None),
        ] {
            let (config, tensors) = with(file, &[]);
            let len = len.map_or(config.d_model, |()| config.rope.dims / 2);
            let mut writer = GgufWriter::new();
            for stored in tensors.names() {
                let view = tensors.get(stored).unwrap();
                writer.tensor(stored, view.ty, &[view.rows, view.cols], view.data);
            }
            writer.tensor(name, WeightType::F32, &[len], &vec![0; 4 * len]);
            let file = Gguf::from_bytes(FileBytes::Owned(writer.to_bytes())).unwrap();
            let names = check(&config, &TensorSource::from_gguf(file)).unwrap();
            assert!(names.contains(name));
        }
    }
}
