//! Runs models: files, tokenizer, templates, forward pass, scheduling.
//!
//! Plain threads and channels, no async. Decisions about KV blocks belong to `kvik-cache`,
//! arithmetic to `kvik-kernels`.

pub mod api;
pub mod batch;
pub mod model;
