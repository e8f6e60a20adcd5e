//! Runs models: files, tokenizer, templates, forward pass, scheduling.
//!
//! Plain threads and channels, no async. Decisions about KV blocks belong to `kvik-cache`,
//! arithmetic to `kvik-kernels`.

#![deny(unsafe_code)]

pub mod answer;
pub mod api;
pub mod batch;
pub mod bytes;
pub mod config;
pub mod constraint;
pub mod engine;
pub mod gguf;
pub mod hf;
mod jinja;
pub mod load;
pub mod model;
mod panics;
pub mod perplexity;
pub mod prompts;
pub mod sampler;
pub mod schedule;
#[cfg(test)]
#[path = "../../skipped.rs"]
mod skipped;
pub mod stats;
pub mod store;
pub mod template;
pub mod text;
pub mod tokenizer;
mod worker;
