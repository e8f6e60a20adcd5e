//! Tensors in memory, as GGUF files and as checkpoints.

use std::ops::Range;
use std::path::Path;

use kvik_kernels::WeightType;
use kvik_model::ModelConfig;
use kvik_text::files::TensorSource;
use kvik_text::files::bytes::FileBytes;
use kvik_text::files::gguf::Gguf;
use kvik_text::files::gguf::write::GgufWriter;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use super::families::Family;

/// Bytes with a shape.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) ty: WeightType,
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<u8>,
}

impl Tensor {
    fn row_bytes(&self) -> usize {
        self.data.len() / self.rows()
    }

    pub(crate) fn rows(&self) -> usize {
        if self.shape.len() == 1 { 1 } else { self.shape[..self.shape.len() - 1].iter().product() }
    }

    pub(crate) fn cols(&self) -> usize {
        *self.shape.last().unwrap()
    }

    /// Brings the rows of each head that rotate, of which GGUF has the two of a pair side by side, in the order of
    /// checkpoints: the first of all pairs, then the second of all. A bias has rows of one number.
    pub(crate) fn unpermute(&mut self, heads: usize, rotated: usize) {
        let dim = self.shape[0] / heads;
        *self = self.in_order(|row| match row % dim {
            of_head if of_head < rotated => {
                row - of_head + 2 * (of_head % (rotated / 2)) + of_head / (rotated / 2)
            }
            _ => row,
        });
    }

    /// The rows that `from` says; a vector has rows of one number.
    pub(crate) fn in_order(&self, from: impl Fn(usize) -> usize) -> Tensor {
        let bytes = self.data.len() / self.shape[0];
        let data =
            (0..self.shape[0]).flat_map(|row| &self.data[from(row) * bytes..][..bytes]).copied().collect();
        Tensor { data, ..self.clone() }
    }

    /// Some of the rows, the first dimension.
    pub(crate) fn some_rows(&self, rows: Range<usize>) -> Tensor {
        let bytes = self.data.len() / self.shape[0];
        let shape = [&[rows.len()], &self.shape[1..]].concat();
        Tensor { ty: self.ty, shape, data: self.data[rows.start * bytes..rows.end * bytes].to_vec() }
    }

    /// All rows of several tensors, one below the other.
    pub(crate) fn below(parts: &[Tensor]) -> Tensor {
        let rows = parts.iter().map(|part| part.shape[0]).sum();
        let shape = [&[rows], &parts[0].shape[1..]].concat();
        Tensor { ty: parts[0].ty, shape, data: parts.iter().flat_map(|part| part.data.clone()).collect() }
    }

    /// A matrix the other way round.
    pub(crate) fn transposed(&self) -> Tensor {
        let (rows, cols) = (self.rows(), self.cols());
        let size = self.data.len() / (rows * cols);
        let from = (0..rows * cols).map(|to| (to % rows * cols + to / rows) * size);
        let data = from.flat_map(|from| self.data[from..from + size].to_vec()).collect();
        Tensor { ty: self.ty, shape: vec![cols, rows], data }
    }

    /// The same numbers in another shape.
    pub(crate) fn reshaped(&self, shape: &[usize]) -> Tensor {
        assert_eq!(shape.iter().product::<usize>(), self.shape.iter().product::<usize>());
        Tensor { shape: shape.to_vec(), ..self.clone() }
    }

    /// What `change` makes of all numbers of a tensor of f32.
    pub(crate) fn map(&self, change: impl Fn(f32) -> f32) -> Tensor {
        let data = numbers(self).into_iter().flat_map(|x| change(x).to_le_bytes()).collect();
        Tensor { data, ..self.clone() }
    }

    /// The matrices of a stack.
    pub(crate) fn split(&self, count: usize) -> Vec<Tensor> {
        let shape = vec![self.rows() / count, self.cols()];
        let parts = self.data.chunks_exact(self.data.len() / count);
        parts.map(|data| Tensor { ty: self.ty, shape: shape.clone(), data: data.to_vec() }).collect()
    }

    /// A stack in three dimensions.
    pub(crate) fn in_three(&self, count: usize) -> Tensor {
        Tensor { shape: vec![count, self.rows() / count, self.cols()], ..self.clone() }
    }

    /// The same in two dimensions.
    pub(crate) fn in_two(&self) -> Tensor {
        Tensor { shape: vec![self.rows(), self.cols()], ..self.clone() }
    }

    /// Of each of `count` matrices the rows of the first stack, then those of the second.
    pub(crate) fn side_by_side(first: &Tensor, second: &Tensor, count: usize) -> Tensor {
        let parts = first.split(count).into_iter().zip(second.split(count));
        let data = parts.flat_map(|(first, second)| [first.data, second.data].concat()).collect();
        let both = Tensor { ty: first.ty, shape: vec![2 * first.rows(), first.cols()], data };
        both.in_three(count)
    }

    /// Row number `row`.
    pub(crate) fn row(&self, row: usize) -> &[u8] {
        &self.data[row * self.row_bytes()..][..self.row_bytes()]
    }
}

/// All tensors of a source.
pub(crate) fn tensors_of(source: &TensorSource) -> Vec<(String, Tensor)> {
    let tensor = |name: &str| {
        let view = source.get(name).unwrap();
        let shape = if view.rows == 1 { vec![view.cols] } else { vec![view.rows, view.cols] };
        (name.to_owned(), Tensor { ty: view.ty, shape, data: view.data.to_vec() })
    };
    source.names().map(tensor).collect()
}

/// Tensors of a GGUF file.
pub(crate) fn gguf(tensors: &[(String, Tensor)]) -> TensorSource {
    let mut writer = GgufWriter::new();
    for (name, tensor) in tensors {
        writer.tensor(name, tensor.ty, &tensor.shape, &tensor.data);
    }
    TensorSource::from_gguf(Gguf::from_bytes(FileBytes::Owned(writer.to_bytes())).unwrap())
}

/// The layer and the part in `blk.7.attn_q.weight`.
pub(crate) fn of_layer(name: &str) -> Option<(usize, &str)> {
    let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, part))
}

/// Writes a checkpoint of a family.
pub(crate) fn write(directory: &Path, family: &Family, config: &ModelConfig, tensors: &[(String, Tensor)]) {
    let mut json = family.config(config);
    if let Some((_, long)) = tensors.iter().find(|(name, _)| name == "rope_factors_long.weight") {
        let (_, short) = tensors.iter().find(|(name, _)| name == "rope_factors_short.weight").unwrap();
        json["rope_scaling"] = json!({"type": "longrope", "long_factor": numbers(long),
            "short_factor": numbers(short), "attention_factor": 1.2_f32});
    }
    write_tensors(directory, &json, &family.checkpoint(config, tensors));
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    assert_eq!(tensor.ty, WeightType::F32);
    tensor.data.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// Writes tensors, a configuration and a tokenizer of two tokens.
pub(crate) fn write_tensors(directory: &Path, config: &Value, tensors: &[(String, Tensor)]) {
    let mut config = config.clone();
    config["tie_word_embeddings"] = json!(!tensors.iter().any(|(name, _)| name == "lm_head.weight"));
    let tokenizer = json!({
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel"},
    });
    for (name, json) in [("config.json", &config), ("tokenizer.json", &tokenizer)] {
        std::fs::write(directory.join(name), json.to_string()).unwrap();
    }
    let views = tensors.iter().map(|(name, tensor)| {
        let dtype = match tensor.ty {
            WeightType::F32 => Dtype::F32,
            WeightType::F16 => Dtype::F16,
            _ => Dtype::U8,
        };
        (name, TensorView::new(dtype, tensor.shape.clone(), &tensor.data).unwrap())
    });
    let bytes = safetensors::serialize(views, None).unwrap();
    std::fs::write(directory.join("model.safetensors"), bytes).unwrap();
}
