//! aarch64: what NEON calls the words of the kernels.

pub(crate) mod neon;
