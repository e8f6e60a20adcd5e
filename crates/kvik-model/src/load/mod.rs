//! Entry point for all model files: reads a path or embedded bytes into a [`LoadedModel`].
//!
//! Reads headers, vocabulary and settings; weights stay in their files until they are packed.

mod adapter;
mod check;
mod embedding;
mod gguf;
mod hf;
mod pooling;
mod sampling;
mod settings;

use std::path::Path;

pub use crate::{ConfigError, LoadedAdapter};
use check::{check_config, check_layers};
pub use embedding::{Embedding, Ranking};
pub use gguf::model_config;
pub use pooling::{Pooling, UnknownPooling};
pub use sampling::{FileSampling, SamplingDefaults, SamplingOptions, SamplingSource, Sourced};

use hf::HfConfig;
use kvik_text::files::bytes::FileBytes;
use kvik_text::files::gguf::{Gguf, GgufError};
use kvik_text::files::hf::{HfError, HfSettings, Shards, parse_json, read_optional, read_settings};
use kvik_text::files::{FileError, TensorSource};
use kvik_text::template::{ChatTemplate, TemplateError};
use kvik_text::tokenizer::{Tokenizer, TokenizerError, TokenizerHints};

use crate::ModelConfig;

/// A model whose files have been read and checked, and whose weights have not been packed yet.
#[derive(Debug)]
pub struct LoadedModel {
    /// Shape and constants.
    pub config: ModelConfig,
    /// Weights by canonical name.
    pub tensors: TensorSource,
    /// Converts text to tokens and back.
    pub tokenizer: Tokenizer,
    /// The model's own chat template, in Jinja.
    pub chat_template: Option<String>,
    /// Its additional template for conversations with tools, which its files name `tool_use`.
    pub tool_template: Option<String>,
    /// Its settings as an embedding model.
    pub embedding: Embedding,
    /// The sampling that its files recommend.
    pub sampling: FileSampling,
}

impl LoadedModel {
    /// Opens a GGUF file or a Hugging Face directory.
    pub fn open(path: &Path) -> Result<LoadedModel, LoadError> {
        match path.is_dir() {
            true => LoadedModel::from_directory(path),
            false => LoadedModel::from_gguf(Gguf::open(path)?),
        }
    }

    /// Reads a GGUF file that is already in memory, such as the embedded model.
    pub fn from_bytes(bytes: FileBytes) -> Result<LoadedModel, LoadError> {
        LoadedModel::from_gguf(Gguf::from_bytes(bytes)?)
    }

    fn from_gguf(file: Gguf) -> Result<LoadedModel, LoadError> {
        let config = model_config(&file)?;
        let tokenizer = Tokenizer::from_gguf(&file)?;
        let chat_template = file.text("tokenizer.chat_template")?.map(str::to_owned);
        let tool_template = file.text("tokenizer.chat_template.tool_use")?.map(str::to_owned);
        let embedding = Embedding::from_gguf(&file, &config)?;
        let sampling = FileSampling::from_gguf(&file);
        let tensors = TensorSource::from_gguf(file);
        Ok(LoadedModel { config, tensors, tokenizer, chat_template, tool_template, embedding, sampling })
    }

    fn from_directory(path: &Path) -> Result<LoadedModel, LoadError> {
        let bad = |error| HfError::json(&path.join("config.json"), &error);
        let hf_config = HfConfig::new(required(&path.join("config.json"), read_settings)?).map_err(bad)?;
        let name = path.file_name().map_or("model".into(), |name| name.to_string_lossy());
        let config = hf::model_config(&hf_config, &name)?;
        let HfSettings { chat_template, tool_template, hints, generation } = HfSettings::read(path)?;
        let tokenizer = required(&path.join("tokenizer.json"), read_optional)?;
        let tokenizer =
            Tokenizer::from_json(&tokenizer, &TokenizerHints { rows: Some(config.vocab), ..hints })?;
        if tokenizer.vocab_len() > config.vocab {
            let expected = format!("at most the {} embedding rows", config.vocab);
            return Err(ConfigError::new("tokenizer.json", tokenizer.vocab_len(), expected).into());
        }
        let shards = Shards::open(path, hf_config.tie_word_embeddings, hf_config.names(&config))?;
        let tensors = TensorSource::from_shards(shards);
        let embedding = Embedding::from_directory(path, &config)?;
        let sampling = FileSampling::from_generation_config(&generation);
        Ok(LoadedModel { config, tensors, tokenizer, chat_template, tool_template, embedding, sampling })
    }
}

impl LoadedModel {
    /// The chat template: `given`, otherwise the model's own with its additional one for tools, otherwise ChatML if the
    /// vocabulary has its tokens.
    pub fn template(&self, given: Option<&str>) -> Result<ChatTemplate, TemplateError> {
        let own = self.chat_template.as_deref().or_else(|| ChatTemplate::chatml(&self.tokenizer));
        let template =
            ChatTemplate::with_tokens_of(given.or(own).ok_or(TemplateError::Missing)?, &self.tokenizer)?;
        match self.tool_template.as_deref().filter(|_| given.is_none()) {
            Some(for_tools) => template.and_for_tools(for_tools),
            None => Ok(template),
        }
    }

    /// The model's own template, as above; `None` if it has none and uses no known format.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn own_template(&self) -> Result<Option<ChatTemplate>, TemplateError> {
        match self.template(None) {
            Err(TemplateError::Missing) => Ok(None),
            template => template.map(Some),
        }
    }

    /// The sampling of requests that set none: as its files recommend, else as its family's makers do, else kvik's own.
    pub fn sampling_defaults(&self) -> SamplingDefaults {
        SamplingDefaults::of(&self.config, &self.sampling)
    }
}

/// The name of a model in its files, with spaces replaced: for URLs and clients.
pub fn url_name(own: &str) -> String {
    let name: Vec<&str> = own.split_whitespace().collect();
    if name.is_empty() { "model".to_owned() } else { name.join("-") }
}

/// The shape of a model from the text of a Hugging Face `config.json`.
pub fn config_from_json(json: &[u8], name: &str) -> Result<ModelConfig, LoadError> {
    let bad = |error| HfError::json(name.as_ref(), &error);
    let hf_config = parse_json(json).and_then(HfConfig::new).map_err(bad)?;
    Ok(hf::model_config(&hf_config, name)?)
}

/// Reads a file that a model directory must have.
fn required<T>(path: &Path, read: impl Fn(&Path) -> Result<Option<T>, FileError>) -> Result<T, FileError> {
    let missing = || std::io::Error::new(std::io::ErrorKind::NotFound, "a model directory needs this file");
    read(path)?.ok_or_else(|| FileError::io(path, missing()))
}

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file is not usable.
    #[error(transparent)]
    File(#[from] FileError),
    /// The model's shape is not usable.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The vocabulary is not usable.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

impl From<GgufError> for LoadError {
    fn from(error: GgufError) -> LoadError {
        FileError::from(error).into()
    }
}

impl From<HfError> for LoadError {
    fn from(error: HfError) -> LoadError {
        FileError::from(error).into()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod checkpoint_tests;
#[cfg(test)]
mod extras_tests;
#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod recurrence_tests;
#[cfg(test)]
mod tests;
