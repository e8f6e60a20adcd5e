//! aarch64: NEON implementations of the kernels' lanes.

pub(crate) mod f32x16_neon;
pub(crate) mod i32x16_neon;
pub(crate) mod neon;
pub(crate) mod u32x16_neon;
