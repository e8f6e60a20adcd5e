//! Fuzzing of parsers of untrusted bytes, on stable Rust and without instrumentation: no panic, no hang, no excessive
//! memory.
//!
//! `FUZZ=name` restricts a test to one campaign, `FUZZ_SECONDS` sets its duration and `FUZZ_SEED` its seed. A failing
//! input is written to `failure-NAME.bin`.

mod campaign;
mod mutate;

pub use campaign::{Campaign, Mutate, corpus};
pub use mutate::{Random, mutate};
