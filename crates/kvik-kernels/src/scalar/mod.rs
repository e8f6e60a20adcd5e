//! The specification: every operation in plain loops, in the order that all variants keep.

pub(crate) mod attention;
mod f32x16;
mod i32x16;
pub(crate) mod matmul;
pub(crate) mod ops;
