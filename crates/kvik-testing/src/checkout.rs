//! Paths of the repository's files that tests read.

use std::path::{Path, PathBuf};

/// Root of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Path of the embedded model.
pub fn tiny_model() -> PathBuf {
    tiny_file("kvik-tiny-q8_0.gguf")
}

/// Path of a file in the embedded model's folder.
pub fn tiny_file(name: &str) -> PathBuf {
    repository().join("models/tiny").join(name)
}

/// Path of a small model that another program has run, or of that program's output.
pub fn golden(name: &str) -> PathBuf {
    repository().join("crates/kvik-model/tests/golden").join(name)
}
