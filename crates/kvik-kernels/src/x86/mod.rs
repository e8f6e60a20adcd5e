//! x86-64: what each instruction set calls the words of the kernels.

pub(crate) mod attention_avx2;
pub(crate) mod attention_avx512;
pub(crate) mod attention_avxvnni;
pub(crate) mod avx2;
pub(crate) mod avx512;
mod f32x16_avx2;
mod f32x16_avx512;
mod i32x16_avx2;
mod i32x16_avx512;
pub(crate) mod ops_avx2;
pub(crate) mod ops_avx512;
