//! One entry for all model files: a path or embedded bytes in, a [`LoadedModel`] out.
//!
//! Reads headers, vocabulary and settings; weights stay where they are until they are packed.

mod check;
mod convert;
mod source;

use std::path::{Path, PathBuf};

pub use check::ConfigError;
pub(crate) use check::check_config;
pub use convert::{CONVERT_TARGETS, convert};
pub use source::{TensorSource, TensorView};

use crate::bytes::FileBytes;
use crate::gguf::{Gguf, GgufError, model_config};
use crate::model::ModelConfig;
use crate::tokenizer::{Tokenizer, TokenizerError};

/// A model whose files have been read and checked, and whose weights have not been packed yet.
#[derive(Debug)]
pub struct LoadedModel {
    /// Shape and constants.
    pub config: ModelConfig,
    /// Weights by canonical name.
    pub tensors: TensorSource,
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// The model's own chat template, in Jinja.
    pub chat_template: Option<String>,
}

impl LoadedModel {
    /// Opens a GGUF file.
    pub fn open(path: &Path) -> Result<LoadedModel, LoadError> {
        LoadedModel::from_gguf(Gguf::open(path)?)
    }

    /// Reads a GGUF file that is already in memory, such as the model inside the binary.
    pub fn from_bytes(bytes: FileBytes) -> Result<LoadedModel, LoadError> {
        LoadedModel::from_gguf(Gguf::from_bytes(bytes)?)
    }

    fn from_gguf(file: Gguf) -> Result<LoadedModel, LoadError> {
        let config = model_config(&file)?;
        let tokenizer = Tokenizer::from_gguf(&file)?;
        let chat_template = file.text("tokenizer.chat_template")?.map(str::to_owned);
        Ok(LoadedModel { config, tensors: TensorSource::from_gguf(file), tokenizer, chat_template })
    }
}

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file cannot be read.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A tensor cannot be rewritten in the type asked for.
    #[error(
        "a tensor of {from} with rows of {cols} cannot be converted to {to}; choose f32, f16, bf16, q8_0 or q4_0"
    )]
    NoConversion {
        /// Type in the file.
        from: &'static str,
        /// Type asked for.
        to: &'static str,
        /// Columns of the tensor.
        cols: usize,
    },
    /// The GGUF file is not usable.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The model's shape is not usable.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The vocabulary is not usable.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

#[cfg(test)]
mod tests;
