//! The arithmetic on attention weights, compiled for each instruction set.

use super::kernel::{WeightKernels, weight_kernels};

crate::float_variants::float_variants!(weight_kernels, WeightKernels);
