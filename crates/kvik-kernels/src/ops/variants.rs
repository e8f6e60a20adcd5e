//! The small operations, compiled for each instruction set.

use super::kernel::{OpsKernels, ops_kernels};

crate::float_variants::float_variants!(ops_kernels, OpsKernels);
