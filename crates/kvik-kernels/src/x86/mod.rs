//! x86-64: implementations of the kernels' lanes.

pub(crate) mod amx;
pub(crate) mod avx2;
pub(crate) mod avx512;
pub(crate) mod f32x16_avx2;
pub(crate) mod f32x16_avx512;
pub(crate) mod i32x16_avx2;
pub(crate) mod i32x16_avx512;
pub(crate) mod u32x16_avx2;
pub(crate) mod u32x16_avx512;
