//! The small operations for AVX-512.

crate::ops::kernel::ops_kernels!(
    super::f32x16_avx512::Avx512,
    "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"
);
