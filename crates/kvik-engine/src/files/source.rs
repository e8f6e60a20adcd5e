//! Tensors by name, wherever they are stored.

use super::bytes::FileBytes;
use super::gguf::Gguf;
use super::hf::Shards;
use super::{FileError, TensorView};

/// The tensors of a model under GGUF's canonical names.
#[derive(Debug)]
pub struct TensorSource {
    store: Store,
}

#[derive(Debug)]
enum Store {
    Gguf(Gguf),
    Shards(Shards),
}

impl TensorSource {
    /// The tensors of a GGUF file.
    pub fn from_gguf(file: Gguf) -> TensorSource {
        TensorSource { store: Store::Gguf(file) }
    }

    /// The tensors of safetensors files.
    pub(crate) fn from_shards(shards: Shards) -> TensorSource {
        TensorSource { store: Store::Shards(shards) }
    }

    /// The tensors of one safetensors file that is in memory.
    pub fn from_safetensors(bytes: Vec<u8>) -> Result<TensorSource, FileError> {
        let mut shards = Shards::default();
        shards.add("model.safetensors".as_ref(), FileBytes::Owned(bytes))?;
        Ok(TensorSource::from_shards(shards))
    }

    /// A tensor by its canonical name, such as `blk.0.attn_q.weight`.
    pub fn get(&self, name: &str) -> Option<TensorView<'_>> {
        match &self.store {
            Store::Gguf(file) => {
                let info = file.tensor(name)?;
                Some(TensorView { ty: info.ty, rows: info.rows, cols: info.cols, data: file.data(info) })
            }
            Store::Shards(shards) => shards.get(name),
        }
    }

    /// What the file itself calls the tensor of a canonical name.
    pub fn stored_name<'n>(&'n self, name: &'n str) -> &'n str {
        match &self.store {
            Store::Gguf(_) => name,
            Store::Shards(shards) => shards.stored_name(name).unwrap_or(name),
        }
    }

    /// Gives the memory of a tensor's bytes back to the system until they are read again.
    pub fn release(&self, name: &str) {
        match &self.store {
            Store::Gguf(file) => {
                if let Some(info) = file.tensor(name) {
                    file.release(info);
                }
            }
            Store::Shards(shards) => shards.release(name),
        }
    }

    /// All names, in the order of the file.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let names: Box<dyn Iterator<Item = &str>> = match &self.store {
            Store::Gguf(file) => Box::new(file.tensors().iter().map(|info| info.name.as_str())),
            Store::Shards(shards) => Box::new(shards.names()),
        };
        names
    }

    /// Bytes of all tensors.
    pub fn total_bytes(&self) -> u64 {
        match &self.store {
            Store::Gguf(file) => file.tensors().iter().map(|info| info.data.len() as u64).sum(),
            Store::Shards(shards) => shards.total_bytes(),
        }
    }

    /// The GGUF file behind it, when it is one.
    pub fn gguf(&self) -> Option<&Gguf> {
        match &self.store {
            Store::Gguf(file) => Some(file),
            Store::Shards(_) => None,
        }
    }
}
