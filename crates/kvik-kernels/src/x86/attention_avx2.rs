//! Attention for AVX2.

crate::attention::kernel::attention_kernels!(
    super::f32x16_avx2::Avx2,
    super::i32x16_avx2::Avx2Sums<false>,
    "avx2,fma,f16c"
);
