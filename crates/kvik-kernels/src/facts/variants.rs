//! Facts, compiled for each instruction set.

use super::kernel::{FactsKernels, facts_kernels};

crate::f32x16::variants!(facts_kernels, FactsKernels);
