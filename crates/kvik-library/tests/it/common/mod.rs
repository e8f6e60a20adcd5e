//! What tests of the library share: the embedded model, opened, and texts to ask it.

#![allow(dead_code, reason = "each test uses a part")]

pub(crate) mod usage;

use std::path::Path;

use kvik_library::{AnswerOptions, Model, Options, SamplingOptions};

/// A small budget, so that many models fit a machine of tests.
const KV_BYTES: u64 = 64 << 20;

/// Tokens that take a while, and fit the context behind a prompt.
pub(crate) const ENDLESS: usize = 1500;

pub(crate) fn options() -> Options {
    Options { kv_bytes: Some(KV_BYTES), threads: Some(2), ..Options::new(kvik_testing::tiny_model()) }
}

/// The embedded model, without a disk.
pub(crate) fn model() -> Model {
    Model::open(options()).expect("the embedded model opens")
}

/// The same with a cache on disk.
pub(crate) fn model_on(dir: &Path) -> Model {
    Model::open(options().with_disk(dir)).expect("the embedded model opens")
}

/// Words that no other `seed` has in this order.
pub(crate) fn text(seed: u64, words: usize) -> String {
    let word = |i: usize| {
        let bits = kvik_testing::mix(seed << 32 | i as u64);
        ["river", "stone", "letter", "seven", "garden", "winter", "engine", "small"][bits as usize % 8]
    };
    (0..words).map(word).collect::<Vec<_>>().join(" ")
}

/// Answers of at most so many tokens, drawn by a seed.
pub(crate) fn drawn(seed: u64, max_tokens: usize) -> AnswerOptions {
    let sampling = SamplingOptions { temperature: Some(0.9), ..SamplingOptions::NONE };
    AnswerOptions { sampling, seed: Some(seed), ..AnswerOptions::RECOMMENDED.at_most(max_tokens) }
}

/// An answer that nothing but its length or its reader ends.
pub(crate) fn endless(seed: u64) -> AnswerOptions {
    AnswerOptions { min_tokens: ENDLESS, ..drawn(seed, ENDLESS) }
}

pub(crate) fn greedy(max_tokens: usize) -> AnswerOptions {
    AnswerOptions::GREEDY.at_most(max_tokens)
}
