//! Weights in one or several safetensors files, by canonical name.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

use kvik_kernels::WeightType;
use safetensors::tensor::TensorInfo;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use super::names::{Name, Names};
use super::repack::{self, Repacked};
use super::{HfError, read_json};
use crate::files::bytes::FileBytes;
use crate::files::{FileError, TensorView};

const EMBEDDING: &str = "token_embd.weight";
const OUTPUT: &str = "output.weight";

/// gpt-oss' blocks, scales and biases, with the model's weights and biases that they are converted to.
const REPACKED: [([&str; 3], [&[&str]; 2]); 2] = [
    (
        ["gate_up_proj_blocks", "gate_up_proj_scales", "gate_up_proj_bias"],
        [&["ffn_gate_exps.weight", "ffn_up_exps.weight"], &["ffn_gate_exps.bias", "ffn_up_exps.bias"]],
    ),
    (
        ["down_proj_blocks", "down_proj_scales", "down_proj_bias"],
        [&["ffn_down_exps.weight"], &["ffn_down_exps.bias"]],
    ),
];

/// The mapped files and the location of each tensor.
#[derive(Debug, Default)]
pub struct Shards {
    files: Vec<FileBytes>,
    tensors: Vec<Entry>,
    index: HashMap<String, usize>,
    names: Names,
    /// Tensors that are still to be converted, by layer and name within its experts.
    packed: BTreeMap<(u32, &'static str), Packed>,
}

#[derive(Debug)]
struct Entry {
    /// GGUF's name.
    name: String,
    /// The name in the file.
    stored: String,
    ty: WeightType,
    rows: usize,
    cols: usize,
    file: usize,
    data: Range<usize>,
}

/// A tensor of a file before its conversion.
#[derive(Debug)]
struct Packed {
    /// The name in the file.
    stored: String,
    dtype: Dtype,
    shape: Vec<usize>,
    file: usize,
    data: Range<usize>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Shards {
    /// Maps the safetensors files of a directory. `tied` is whether the configuration uses the embedding
    /// as the output matrix.
    pub fn open(directory: &Path, tied: bool, names: Names) -> Result<Shards, FileError> {
        let mut shards = Shards { names, ..Shards::default() };
        for path in shard_paths(directory)? {
            let bytes = FileBytes::map(&path).map_err(|source| FileError::io(&path, source))?;
            shards.add(&path, bytes)?;
        }
        shards.repack()?;
        match tied {
            true => shards.tie(),
            false if shards.get(OUTPUT).is_none() => return Err(HfError::NoOutputMatrix.into()),
            false => {}
        }
        Ok(shards)
    }

    /// All files, in order.
    pub fn files(&self) -> impl Iterator<Item = &FileBytes> {
        self.files.iter()
    }

    /// Unifies embedding and output matrix: a tied checkpoint stores either or both.
    fn tie(&mut self) {
        let Some(output) = self.index.remove(OUTPUT) else { return };
        match self.index.contains_key(EMBEDDING) {
            true => {
                self.tensors.remove(output);
                self.index.values_mut().filter(|at| **at > output).for_each(|at| *at -= 1);
            }
            false => {
                EMBEDDING.clone_into(&mut self.tensors[output].name);
                self.index.insert(EMBEDDING.to_owned(), output);
            }
        }
    }

    /// Adds one file.
    pub fn add(&mut self, path: &Path, bytes: FileBytes) -> Result<(), HfError> {
        let bad = |error| HfError::BadShard { path: path.into(), reason: format!("{error}") };
        let (header_len, metadata) = SafeTensors::read_metadata(&bytes).map_err(bad)?;
        // The library has checked that the tensors are contiguous up to the file's end.
        let data_start = 8 + header_len;
        for tensor in metadata.offset_keys() {
            let info = metadata.info(&tensor).expect("the key is the metadata's own");
            let (start, end) = info.data_offsets;
            let data = data_start + start..data_start + end;
            match self.names.of(&tensor) {
                Name::Canonical(name) => self.add_tensor(vec![name], &tensor, info, data)?,
                Name::Halves(names) => self.add_tensor(names.into(), &tensor, info, data)?,
                Name::Packed(layer, part) => self.add_packed((layer, part), &tensor, info, data)?,
                Name::Unread => {}
                Name::Unknown if is_of_quantised(&tensor) => return Err(HfError::Quantised { tensor }),
                Name::Unknown => return Err(HfError::UnknownTensor { tensor }),
            }
        }
        self.files.push(bytes);
        Ok(())
    }

    /// Adds a tensor of the file being added: equal parts of its rows become the tensors `names`.
    fn add_tensor(
        &mut self,
        names: Vec<String>,
        stored: &str,
        info: &TensorInfo,
        data: Range<usize>,
    ) -> Result<(), HfError> {
        let ty = weight_type(stored, info.dtype)?;
        let bad_shape = || HfError::BadShape { tensor: stored.to_owned(), shape: info.shape.clone() };
        let (rows, cols) = match info.shape[..] {
            [len] if len > 0 => match self.names.rows_of(&names[0]) {
                rows if rows > 0 && len.is_multiple_of(rows) => (rows, len / rows),
                _ => return Err(bad_shape()),
            },
            [rows, cols] if rows > 0 && cols > 0 => (rows, cols),
            // The experts are stacked.
            [count, rows, cols] if count > 0 && rows > 0 && cols > 0 => (count * rows, cols),
            _ => return Err(bad_shape()),
        };
        if !rows.is_multiple_of(names.len()) {
            return Err(bad_shape());
        }
        let (rows, bytes) = (rows / names.len(), data.len() / names.len());
        for (part, name) in names.into_iter().enumerate() {
            let start = data.start + part * bytes;
            let stored = stored.to_owned();
            self.push(Entry {
                name,
                stored,
                ty,
                rows,
                cols,
                file: self.files.len(),
                data: start..start + bytes,
            })?;
        }
        Ok(())
    }

    fn push(&mut self, entry: Entry) -> Result<(), HfError> {
        if self.index.insert(entry.name.clone(), self.tensors.len()).is_some() {
            return Err(HfError::DuplicateTensor { tensor: entry.stored });
        }
        self.tensors.push(entry);
        Ok(())
    }

    fn add_packed(
        &mut self,
        key: (u32, &'static str),
        stored: &str,
        info: &TensorInfo,
        data: Range<usize>,
    ) -> Result<(), HfError> {
        let (dtype, shape) = (info.dtype, info.shape.clone());
        let packed = Packed { stored: stored.to_owned(), dtype, shape, file: self.files.len(), data };
        match self.packed.insert(key, packed) {
            None => Ok(()),
            Some(_) => Err(HfError::DuplicateTensor { tensor: stored.to_owned() }),
        }
    }

    /// Converts the experts of gpt-oss, once all files are added.
    pub fn repack(&mut self) -> Result<(), HfError> {
        let packed = std::mem::take(&mut self.packed);
        let layers: BTreeSet<u32> = packed.keys().map(|(layer, _)| *layer).collect();
        for layer in layers {
            let get = |part: &'static str| {
                let missing =
                    || HfError::MissingPart { tensor: format!("layers.{layer}.mlp.experts.{part}") };
                let packed = packed.get(&(layer, part)).ok_or_else(missing)?;
                let data = &self.files[packed.file][packed.data.clone()];
                Ok(repack::Stored { name: &packed.stored, dtype: packed.dtype, shape: &packed.shape, data })
            };
            let mut repacked = Vec::new();
            for (name, parts) in REPACKED {
                let [blocks, scales, bias] = name;
                let (blocks, [weights, biases]) = (get(blocks)?, parts);
                let of_name = |tensor| (blocks.name.to_owned(), tensor);
                repacked.extend(repack::weights(weights, &blocks, &get(scales)?)?.into_iter().map(of_name));
                repacked.extend(repack::biases(biases, &get(bias)?)?.into_iter().map(of_name));
            }
            for (stored, Repacked { part, ty, rows, cols, data }) in repacked {
                let (name, file, len) = (format!("blk.{layer}.{part}"), self.files.len(), data.len());
                self.files.push(FileBytes::Owned(data));
                self.push(Entry { name, stored, ty, rows, cols, file, data: 0..len })?;
            }
        }
        Ok(())
    }

    /// A tensor by canonical name.
    pub fn get(&self, name: &str) -> Option<TensorView<'_>> {
        let entry = &self.tensors[*self.index.get(name)?];
        let data = &self.files[entry.file][entry.data.clone()];
        Some(TensorView { ty: entry.ty, rows: entry.rows, cols: entry.cols, data })
    }

    /// The name of a tensor in its file.
    pub fn stored_name(&self, name: &str) -> Option<&str> {
        self.index.get(name).map(|&entry| self.tensors[entry].stored.as_str())
    }

    /// Drops the resident pages of a tensor; a later access reads them again.
    pub fn release(&self, name: &str) {
        if let Some(&entry) = self.index.get(name) {
            let Entry { file, data, .. } = &self.tensors[entry];
            self.files[*file].release(data.clone());
        }
    }

    /// Canonical names, in the order of the files.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.iter().map(|entry| entry.name.as_str())
    }

    /// Bytes of all tensors.
    pub fn total_bytes(&self) -> u64 {
        self.tensors.iter().map(|entry| entry.data.len() as u64).sum()
    }
}

fn weight_type(tensor: &str, dtype: Dtype) -> Result<WeightType, HfError> {
    match dtype {
        Dtype::F32 => Ok(WeightType::F32),
        Dtype::F16 => Ok(WeightType::F16),
        Dtype::BF16 => Ok(WeightType::Bf16),
        other => Err(HfError::UnsupportedType { tensor: tensor.into(), dtype: format!("{other:?}") }),
    }
}

/// Whether the name belongs to a tensor of quantised weights.
fn is_of_quantised(tensor: &str) -> bool {
    const ENDS: [&str; 11] = [
        "scale",
        "scale_inv",
        "scale_2",
        "scales",
        "packed",
        "qweight",
        "qzeros",
        "g_idx",
        "zero_point",
        "absmax",
        "quant_map",
    ];
    ENDS.iter().any(|end| tensor.ends_with(end))
}

/// The weight files: those of the index, or the single one.
fn shard_paths(directory: &Path) -> Result<Vec<PathBuf>, FileError> {
    if let Some(index) = read_json::<Index>(&directory.join("model.safetensors.index.json"))? {
        let names: BTreeSet<String> = index.weight_map.into_values().collect();
        return names.into_iter().map(|name| Ok(directory.join(plain_name(name)?))).collect();
    }
    let single = directory.join("model.safetensors");
    match single.is_file() {
        true => Ok(vec![single]),
        false => Err(HfError::NoWeights { path: directory.into() }.into()),
    }
}

/// Checks that a name of the untrusted index does not lead out of the directory.
fn plain_name(name: String) -> Result<String, HfError> {
    let plain = Path::new(&name).file_name().is_some_and(|file| file == name.as_str());
    match plain && !name.contains('\\') {
        true => Ok(name),
        false => Err(HfError::BadShardName { name }),
    }
}
