//! The small operations, compiled for each instruction set.

use super::kernel::{OpsKernels, ops_kernels};

crate::f32x16::variants!(ops_kernels, OpsKernels);
