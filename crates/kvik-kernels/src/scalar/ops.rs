//! The small operations in plain Rust: the specification.

crate::ops::kernel::ops_kernels!(super::f32x16::Scalar);
