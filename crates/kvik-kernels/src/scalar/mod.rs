//! The specification: every operation in plain loops, in the order that all variants keep.

pub(crate) mod f32x16;
pub(crate) mod i32x16;
pub(crate) mod matmul;
