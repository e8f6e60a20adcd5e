//! Tests of the crate through what it offers, in one program: each file is a subject.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod adapters;
mod background;
mod checkpoints;
mod conversion;
#[cfg(feature = "gpu")]
mod device;
mod disk;
mod drafts;
mod edited;
mod embeddings;
mod engine;
mod exactness;
mod explain;
mod fairness;
mod fake;
mod fuzz;
mod golden;
mod golden_long;
mod hostile;
mod idle;
mod kept_parts;
mod layers;
mod lora;
mod naive;
mod pairs;
mod panics;
mod peer;
mod perplexity;
mod pins;
mod public;
mod random_adapter;
mod remote;
mod retain_golden;
mod retention;
mod retention_model;
mod schedule;
mod sensitivity;
mod served;
mod shapes;
mod states;
mod thin_path;
mod tier;
mod tokenizer_memory;
