//! aarch64: what NEON calls the words of the kernels.

pub(crate) mod attention_neon;
mod f32x16_neon;
mod i32x16_neon;
pub(crate) mod neon;
pub(crate) mod ops_neon;
