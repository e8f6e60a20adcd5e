//! Attention for AVX-512.

crate::attention::kernel::attention_kernels!(
    super::f32x16_avx512::Avx512,
    super::i32x16_avx512::Avx512Sums,
    "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c"
);
