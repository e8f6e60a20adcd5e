//! Tests of models through what the crate offers, in one program: each file is a subject.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod checkpoints;
mod conversion;
mod edited;
mod exactness;
mod fuzz;
mod golden;
mod golden_long;
mod heads;
mod hostile;
mod layers;
mod lora;
mod naive;
mod peer;
mod random_adapter;
mod shapes;
mod states;
mod thin_path;
mod tokenizer_memory;
