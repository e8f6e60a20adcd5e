//! Attention in plain Rust: the specification.

crate::attention::kernel::attention_kernels!(super::f32x16::Scalar, super::i32x16::ScalarSums);
