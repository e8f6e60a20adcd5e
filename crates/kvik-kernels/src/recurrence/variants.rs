//! Recurrences, compiled for each instruction set.

use super::kernel::{RecurrenceKernels, recurrence_kernels};

crate::float_variants::float_variants!(recurrence_kernels, RecurrenceKernels);
