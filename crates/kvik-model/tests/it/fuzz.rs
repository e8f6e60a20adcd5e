//! Readers of untrusted bytes on mutated inputs: a few seconds of each.
//!
//! A longer run of one of them:
//! `FUZZ=gguf FUZZ_SECONDS=600 FUZZ_SEED=1 cargo test --release -p kvik-model --test it fuzz -- --nocapture`.

mod targets;

use std::fs;
use std::time::Duration;

use kvik_testing::fuzz::{Campaign, corpus, mutate};
use kvik_testing::golden;
use kvik_text::files::bytes::FileBytes;
use kvik_text::files::gguf::Gguf;

const INPUT_MAX: Duration = Duration::from_secs(5);

#[test]
fn no_target_fails() {
    if !kvik_testing::alone() {
        return;
    }
    let duration = kvik_testing::effort(Duration::from_millis(350), Duration::from_secs(10));
    for (name, target) in targets::TARGETS {
        let mut corpus = corpus(name).unwrap();
        if name == "gguf" {
            corpus.extend(golden_headers());
        }
        Campaign { name, target: &target, corpus, mutate: &mutate, input_max: INPUT_MAX, duration }.run();
    }
}

/// The headers of the small models of every architecture.
fn golden_headers() -> Vec<Vec<u8>> {
    let paths = fs::read_dir(golden("")).unwrap().map(|entry| entry.unwrap().path());
    let mut models: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|extension| extension == "gguf")).collect();
    models.sort();
    models.iter().map(|path| header_of(fs::read(path).unwrap())).collect()
}

/// A model without the data of its tensors.
fn header_of(mut model: Vec<u8>) -> Vec<u8> {
    let file = Gguf::from_bytes(FileBytes::Owned(model.clone()));
    let start = file.ok().and_then(|file| file.tensors().iter().map(|tensor| tensor.data.start).min());
    model.truncate(start.unwrap_or(model.len()));
    model
}
