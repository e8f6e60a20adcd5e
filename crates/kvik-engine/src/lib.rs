//! Schedules requests over a model, and stores their blocks.
//!
//! Plain threads and channels, no async. Decisions about KV blocks belong to `kvik-cache`, forward passes to
//! `kvik-model`, text to `kvik-text`.

#![deny(unsafe_code)]

mod answers;
pub mod api;
pub mod config;
pub mod engine;
pub mod eval;
pub mod free_memory;
mod panics;
pub mod retain;
pub mod schedule;
pub mod stats;
pub mod store;
