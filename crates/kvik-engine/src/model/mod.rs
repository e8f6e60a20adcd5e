//! Models: shape, weights and forward pass.

mod config;

pub use config::{Arch, ModelConfig, RopeConfig, RopeScaling, RopeStyle};
