//! Weights in one or several safetensors files, by canonical name.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

use kvik_kernels::WeightType;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use super::names::{Modules, Name, canonical};
use super::{HfError, read_json};
use crate::files::bytes::FileBytes;
use crate::files::{FileError, TensorView};

const EMBEDDING: &str = "token_embd.weight";
const OUTPUT: &str = "output.weight";

/// The mapped files and the location of each tensor.
#[derive(Debug, Default)]
pub(crate) struct Shards {
    files: Vec<FileBytes>,
    tensors: Vec<Entry>,
    index: HashMap<String, usize>,
    /// Modules that the architecture names otherwise than Llama does.
    modules: Modules,
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

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Shards {
    /// Maps the safetensors files of a directory. `tied` is whether the configuration uses the embedding
    /// as the output matrix, `modules` are those that the architecture names otherwise than Llama does.
    pub(crate) fn open(directory: &Path, tied: bool, modules: Modules) -> Result<Shards, FileError> {
        let mut shards = Shards { modules, ..Shards::default() };
        for path in shard_paths(directory)? {
            let bytes = FileBytes::map(&path).map_err(|source| FileError::io(&path, source))?;
            shards.add(&path, bytes)?;
        }
        match tied {
            true => shards.tie(),
            false if shards.get(OUTPUT).is_none() => return Err(HfError::NoOutputMatrix.into()),
            false => {}
        }
        Ok(shards)
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
    pub(crate) fn add(&mut self, path: &Path, bytes: FileBytes) -> Result<(), HfError> {
        let bad = |error| HfError::BadShard { path: path.into(), reason: format!("{error}") };
        let (header_len, metadata) = SafeTensors::read_metadata(&bytes).map_err(bad)?;
        // The library has checked that the tensors are contiguous up to the file's end.
        let data_start = 8 + header_len;
        for tensor in metadata.offset_keys() {
            let info = metadata.info(&tensor).expect("the key is the metadata's own");
            let name = match canonical(&tensor, self.modules) {
                Name::Canonical(name) => name,
                Name::Derived => continue,
                Name::Unknown => return Err(HfError::UnknownTensor { tensor }),
            };
            let ty = weight_type(&tensor, info.dtype)?;
            let (rows, cols) = match info.shape[..] {
                [cols] if cols > 0 => (1, cols),
                [rows, cols] if rows > 0 && cols > 0 => (rows, cols),
                _ => return Err(HfError::BadShape { tensor, shape: info.shape.clone() }),
            };
            let (start, end) = info.data_offsets;
            let data = data_start + start..data_start + end;
            if self.index.insert(name.clone(), self.tensors.len()).is_some() {
                return Err(HfError::DuplicateTensor { tensor });
            }
            self.tensors.push(Entry { name, stored: tensor, ty, rows, cols, file: self.files.len(), data });
        }
        self.files.push(bytes);
        Ok(())
    }

    /// A tensor by canonical name.
    pub(crate) fn get(&self, name: &str) -> Option<TensorView<'_>> {
        let entry = &self.tensors[*self.index.get(name)?];
        let data = &self.files[entry.file][entry.data.clone()];
        Some(TensorView { ty: entry.ty, rows: entry.rows, cols: entry.cols, data })
    }

    /// The name of a tensor in its file.
    pub(crate) fn stored_name(&self, name: &str) -> Option<&str> {
        self.index.get(name).map(|&entry| self.tensors[entry].stored.as_str())
    }

    /// Drops the resident pages of a tensor; a later access reads them again.
    pub(crate) fn release(&self, name: &str) {
        if let Some(&entry) = self.index.get(name) {
            let Entry { file, data, .. } = &self.tensors[entry];
            self.files[*file].release(data.clone());
        }
    }

    /// Canonical names, in the order of the files.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.iter().map(|entry| entry.name.as_str())
    }

    /// Bytes of all tensors.
    pub(crate) fn total_bytes(&self) -> u64 {
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

/// The index is untrusted: its names must not lead out of the directory.
fn plain_name(name: String) -> Result<String, HfError> {
    let plain = Path::new(&name).file_name().is_some_and(|file| file == name.as_str());
    match plain && !name.contains('\\') {
        true => Ok(name),
        false => Err(HfError::BadShardName { name }),
    }
}
