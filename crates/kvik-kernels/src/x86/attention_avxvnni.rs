//! Attention for AVX2 with AVX-VNNI.

crate::attention::kernel::attention_kernels!(
    super::f32x16_avx2::Avx2,
    super::i32x16_avx2::Avx2Sums<true>,
    "avx2,fma,f16c,avxvnni"
);
