//! Tests of the crate through what it offers, in one program: each file is a subject.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod adapters;
mod background;
#[cfg(feature = "gpu")]
mod device;
mod disk;
mod disk_writes;
mod drafts;
#[cfg(feature = "gpu")]
#[path = "../../../kvik-model/tests/it/edited/mod.rs"]
mod edited;
mod embeddings;
mod engine;
mod explain;
mod fairness;
mod fake;
mod heads;
mod idle;
mod kept_parts;
mod pairs;
mod panics;
#[cfg(feature = "gpu")]
#[path = "../../../kvik-model/tests/it/peer/mod.rs"]
mod peer;
mod perplexity;
mod pins;
mod public;
mod remote;
mod retain_golden;
mod retention;
mod retention_model;
mod schedule;
mod sensitivity;
mod served;
mod shared_disk;
mod tier;
