//! The report at the end of an answer: usage, cost, times, and cache statistics.

pub(crate) mod cache;
pub(crate) mod comparison;
pub(crate) mod loops;
#[cfg(test)]
mod memory;
pub(crate) mod retain;
pub mod spans;
pub(crate) mod token_scale;
pub(crate) mod trailer;
pub(crate) mod usage;
