//! Attention for AVX-512.

crate::attention::kernel::attention_kernels!(
    super::f32x16_avx512::Avx512,
    "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"
);
