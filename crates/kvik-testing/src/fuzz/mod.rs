//! Readers of untrusted bytes on mutated inputs, on stable Rust and without instrumentation: no panic, no hang, no growth.
//!
//! `FUZZ=name` runs one campaign of those that a test has, `FUZZ_SECONDS` says for how long and `FUZZ_SEED` with which
//! random numbers. An input that fails is written to `failure-NAME.bin`.

mod campaign;
mod mutate;

pub use campaign::{Campaign, Mutate, corpus};
pub use mutate::{Random, mutate};
