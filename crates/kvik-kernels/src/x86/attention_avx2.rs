//! Attention for AVX2.

crate::attention::kernel::attention_kernels!(super::f32x16_avx2::Avx2, "avx2,fma,f16c");
