//! Attention for NEON.

crate::attention::kernel::attention_kernels!(super::f32x16_neon::Neon, super::i32x16_neon::NeonSums, "neon");
