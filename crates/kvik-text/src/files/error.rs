//! Errors of model files.

use std::path::{Path, PathBuf};

use super::gguf::GgufError;
use super::hf::HfError;

/// The reason why a file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// A file cannot be read.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The GGUF file is not usable.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The model directory is not usable.
    #[error(transparent)]
    Hf(#[from] HfError),
}

impl FileError {
    /// An I/O error on a path.
    pub fn io(path: &Path, source: std::io::Error) -> FileError {
        FileError::Io { path: path.to_owned(), source }
    }
}
