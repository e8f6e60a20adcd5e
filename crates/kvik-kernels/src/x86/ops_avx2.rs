//! The small operations for AVX2.

crate::ops::kernel::ops_kernels!(super::f32x16_avx2::Avx2, "avx2,fma,f16c");
