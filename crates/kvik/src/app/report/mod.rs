//! What an answer says at its end: usage, cost, times, and what the cache did.

pub(crate) mod cache;
pub(crate) mod comparison;
#[cfg(test)]
mod memory;
pub(crate) mod retain;
pub(crate) mod spans;
pub(crate) mod trailer;
pub(crate) mod usage;
