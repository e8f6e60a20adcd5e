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
use crate::hf::{self, HfError, Settings, Shards};
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
    /// Opens a GGUF file or a Hugging Face directory.
    pub fn open(path: &Path) -> Result<LoadedModel, LoadError> {
        match path.is_dir() {
            true => LoadedModel::from_directory(path),
            false => LoadedModel::from_gguf(Gguf::open(path)?),
        }
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

    fn from_directory(path: &Path) -> Result<LoadedModel, LoadError> {
        let hf_config = required(&path.join("config.json"), hf::read_json)?;
        let name = path.file_name().map_or("model".into(), |name| name.to_string_lossy());
        let config = hf::model_config(&hf_config, &name)?;
        let Settings { chat_template, hints } = Settings::read(path)?;
        let tokenizer = required(&path.join("tokenizer.json"), hf::read_optional)?;
        let tokenizer = Tokenizer::from_json(&tokenizer, &hints)?;
        if tokenizer.vocab_len() > config.vocab {
            let expected = format!("at most the {} embedding rows", config.vocab);
            return Err(ConfigError::new("tokenizer.json", tokenizer.vocab_len(), expected).into());
        }
        let tensors = TensorSource::from_shards(Shards::open(path, hf_config.tie_word_embeddings)?);
        Ok(LoadedModel { config, tensors, tokenizer, chat_template })
    }
}

/// The shape of a model from the text of a Hugging Face `config.json`.
pub fn config_from_json(json: &[u8], name: &str) -> Result<ModelConfig, LoadError> {
    let bad = |error: serde_json::Error| HfError::Json { path: name.into(), reason: error.to_string() };
    Ok(hf::model_config(&serde_json::from_slice(json).map_err(bad)?, name)?)
}

/// A file of a model directory that must be there.
fn required<T>(path: &Path, read: impl Fn(&Path) -> Result<Option<T>, LoadError>) -> Result<T, LoadError> {
    let missing = || std::io::Error::new(std::io::ErrorKind::NotFound, "a model directory needs this file");
    read(path)?.ok_or_else(|| LoadError::Io { path: path.to_owned(), source: missing() })
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
    /// The model directory is not usable.
    #[error(transparent)]
    Hf(#[from] HfError),
    /// The model's shape is not usable.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The vocabulary is not usable.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

#[cfg(test)]
mod tests;
