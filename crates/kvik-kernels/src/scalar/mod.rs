//! The specification: every operation in plain loops, in the order that all variants keep.

pub(crate) mod matmul;
