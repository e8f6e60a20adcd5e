//! Runs models: files, tokenizer, templates, forward pass, scheduling.
//!
//! Plain threads and channels, no async. Decisions about KV blocks belong to `kvik-cache`,
//! arithmetic to `kvik-kernels`.

#![deny(unsafe_code)]

pub mod api;
pub mod config;
pub mod conversation;
pub mod engine;
pub mod eval;
pub mod files;
pub mod free_memory;
pub mod load;
pub mod model;
mod panics;
pub mod pulse;
pub mod retain;
pub mod sampler;
pub mod schedule;
pub mod stats;
pub mod store;
pub mod text;
