//! Recurrences, compiled for each instruction set.

use super::kernel::{RecurrenceKernels, recurrence_kernels};

crate::f32x16::variants!(recurrence_kernels, RecurrenceKernels);
