//! The small operations for NEON.

crate::ops::kernel::ops_kernels!(super::f32x16_neon::Neon, "neon");
