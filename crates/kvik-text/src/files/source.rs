//! Tensors by name, from files of either format.

use super::bytes::FileBytes;
use super::gguf::Gguf;
use super::hf::Shards;
use super::known::KnownDigests;
use super::stamp::Stamp;
use super::{FileError, TensorView};

/// The tensors of a model under GGUF's canonical names.
#[derive(Debug)]
pub struct TensorSource {
    files: TensorFiles,
    known: Option<KnownDigests>,
}

#[derive(Debug)]
enum TensorFiles {
    Gguf(Gguf),
    Shards(Shards),
}

impl TensorSource {
    /// The tensors of a GGUF file.
    pub fn from_gguf(file: Gguf) -> TensorSource {
        TensorSource { files: TensorFiles::Gguf(file), known: None }
    }

    /// The tensors of safetensors files.
    pub fn from_shards(shards: Shards) -> TensorSource {
        TensorSource { files: TensorFiles::Shards(shards), known: None }
    }

    /// The tensors of one safetensors file in memory.
    pub fn from_safetensors(bytes: Vec<u8>) -> Result<TensorSource, FileError> {
        let mut shards = Shards::default();
        shards.add("model.safetensors".as_ref(), FileBytes::Owned(bytes))?;
        shards.repack()?;
        Ok(TensorSource::from_shards(shards))
    }

    /// Requests that the system reads all files in order; see `FileBytes::read_ahead`.
    pub fn read_ahead(&self) {
        match &self.files {
            TensorFiles::Gguf(file) => file.files().for_each(FileBytes::read_ahead),
            TensorFiles::Shards(shards) => shards.files().for_each(FileBytes::read_ahead),
        }
    }

    /// Stores and looks up digests of these files in `known`.
    pub fn with_known_digests(self, known: Option<KnownDigests>) -> TensorSource {
        TensorSource { known, ..self }
    }

    /// The store of digests of these files.
    pub fn known(&self) -> Option<&KnownDigests> {
        self.known.as_ref()
    }

    /// The stamps of the files; `None` unless all files have one.
    pub fn stamps(&self) -> Option<Vec<&Stamp>> {
        match &self.files {
            TensorFiles::Gguf(file) => file.files().map(FileBytes::stamp).collect(),
            TensorFiles::Shards(shards) => shards.files().map(FileBytes::stamp).collect(),
        }
    }

    /// A tensor by its canonical name, such as `blk.0.attn_q.weight`.
    pub fn get(&self, name: &str) -> Option<TensorView<'_>> {
        match &self.files {
            TensorFiles::Gguf(file) => {
                let info = file.tensor(name)?;
                Some(TensorView { ty: info.ty, rows: info.rows, cols: info.cols, data: file.data(info) })
            }
            TensorFiles::Shards(shards) => shards.get(name),
        }
    }

    /// The file's own name of the tensor with a canonical name.
    pub fn stored_name<'n>(&'n self, name: &'n str) -> &'n str {
        match &self.files {
            TensorFiles::Gguf(_) => name,
            TensorFiles::Shards(shards) => shards.stored_name(name).unwrap_or(name),
        }
    }

    /// Drops the resident pages of a tensor; a later access reads them again.
    pub fn release(&self, name: &str) {
        match &self.files {
            TensorFiles::Gguf(file) => {
                if let Some(info) = file.tensor(name) {
                    file.release(info);
                }
            }
            TensorFiles::Shards(shards) => shards.release(name),
        }
    }

    /// All names, in the order of the file.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let names: Box<dyn Iterator<Item = &str>> = match &self.files {
            TensorFiles::Gguf(file) => Box::new(file.tensors().iter().map(|info| info.name.as_str())),
            TensorFiles::Shards(shards) => Box::new(shards.names()),
        };
        names
    }

    /// Bytes of all tensors.
    pub fn total_bytes(&self) -> u64 {
        match &self.files {
            TensorFiles::Gguf(file) => file.tensors().iter().map(|info| info.data.len() as u64).sum(),
            TensorFiles::Shards(shards) => shards.total_bytes(),
        }
    }

    /// The GGUF file, if the tensors come from one.
    pub fn gguf(&self) -> Option<&Gguf> {
        match &self.files {
            TensorFiles::Gguf(file) => Some(file),
            TensorFiles::Shards(_) => None,
        }
    }
}
