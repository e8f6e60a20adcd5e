//! Facts, compiled for each instruction set.

use super::kernel::{FactsKernels, facts_kernels};

crate::float_variants::float_variants!(facts_kernels, FactsKernels);
