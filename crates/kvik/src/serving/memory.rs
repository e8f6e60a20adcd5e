//! The memory that this process may still allocate.

pub(crate) use kvik_engine::free_memory::{MachineMemory, available_bytes};
