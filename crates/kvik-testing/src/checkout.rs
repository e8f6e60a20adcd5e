//! Where the files of the repository are that tests read.

use std::path::{Path, PathBuf};

/// The repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The embedded model.
pub fn tiny_model() -> PathBuf {
    tiny_file("kvik-tiny-q8_0.gguf")
}

/// A file beside the embedded model.
pub fn tiny_file(name: &str) -> PathBuf {
    repository().join("models/tiny").join(name)
}

/// A small model that another program has answered with, or its answers.
pub fn golden(name: &str) -> PathBuf {
    repository().join("crates/kvik-engine/tests/golden").join(name)
}
