//! Tests of the whole crate, against a hub on this machine.

mod cuts;
mod hub;
mod names;
mod pulls;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use kvik_testing::{Web, WebRepository, mix};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::{Hub, Manifest, ModelSource, Progress, Quiet, Shelf, ShelfError};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Pseudo-random bytes after the beginning of a GGUF file.
fn content(seed: u64, len: usize) -> Arc<[u8]> {
    let noise = (0..len as u64 / 8).flat_map(|word| mix(seed << 32 | word).to_le_bytes());
    b"GGUF".iter().copied().chain(noise).take(len).collect()
}

fn sha256(content: &[u8]) -> Option<String> {
    Some(Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The repository `o/r` with one file.
fn one_file(content: &Arc<[u8]>) -> WebRepository {
    WebRepository {
        name: "o/r",
        commit: COMMIT,
        files: vec![("m-Q8_0.gguf", content.clone(), sha256(content))],
    }
}

/// Serves a repository.
fn serve(repository: WebRepository) -> Web {
    Web::serve(move |request| repository.answer(request))
}

/// A shelf in an empty directory, whose hub is at `url` and has pieces of a few KiB.
fn shelf_of(url: &str) -> (Shelf, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    (Shelf::open(&dir.path().join("models")).with_hub(hub_at(url)), dir)
}

fn hub_at(url: &str) -> Hub {
    let mut hub = Hub::new(url, Some("secret-token".into()));
    hub.tuning.first_pause = Duration::from_millis(1);
    hub.tuning.piece_bytes = 4 << 10..64 << 10;
    hub
}

fn pull(shelf: &Shelf, source: &str) -> Result<Manifest, ShelfError> {
    pull_with(shelf, source, &Quiet)
}

fn pull_with(shelf: &Shelf, source: &str, progress: &dyn Progress) -> Result<Manifest, ShelfError> {
    let source: ModelSource = source.parse().unwrap();
    shelf.pull(&source, &source.default_name().unwrap(), progress)
}

/// The bytes of the model of a manifest.
fn bytes_of(shelf: &Shelf, manifest: &Manifest) -> Vec<u8> {
    fs::read(shelf.path(manifest).unwrap()).unwrap()
}

/// All files below a directory except locks, relative to it.
fn files_in(dir: &Path) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.ends_with(".lock") => {}
                false => files.push(path.strip_prefix(dir).unwrap().to_owned()),
            }
        }
    }
    files.sort();
    files
}

fn says(error: &ShelfError, words: &[&str]) {
    let text = error.to_string();
    words.iter().for_each(|word| assert!(text.contains(word), "{text} says {word}"));
}
