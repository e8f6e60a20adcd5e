//! x86-64: what each instruction set calls the words of the kernels.

pub(crate) mod avx2;
pub(crate) mod avx512;
