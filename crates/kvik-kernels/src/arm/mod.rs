//! aarch64: what NEON calls the words of the kernels.

pub(crate) mod f32x16_neon;
pub(crate) mod i32x16_neon;
pub(crate) mod neon;
pub(crate) mod u32x16_neon;
