//! How much memory keys and values have.

use std::path::Path;

use anyhow::ensure;
use kvik_cache::Beside;
use kvik_engine::free_memory::MachineMemory;

use crate::settings::size::ByteSize;

/// Bytes that a process on this machine can have at most; `None` where the system does not say.
pub(crate) fn machine_bytes() -> Option<u64> {
    MachineMemory::read(Path::new("/")).as_ref().map(most_bytes)
}

fn most_bytes(memory: &MachineMemory) -> u64 {
    memory.limit_bytes.map_or(memory.total_bytes, |limit| limit.min(memory.total_bytes))
}

/// Refuses more memory than this machine has, and warns of more than is free.
pub(crate) fn check_memory(flag: &str, asked: ByteSize) -> anyhow::Result<()> {
    let memory = MachineMemory::read(Path::new("/"));
    memory.map_or(Ok(()), |memory| check_memory_of(memory, flag, asked))
}

fn check_memory_of(memory: MachineMemory, flag: &str, asked: ByteSize) -> anyhow::Result<()> {
    let (most, free) = (ByteSize(most_bytes(&memory)), ByteSize(memory.available_bytes));
    ensure!(
        asked <= most,
        "{flag} is {asked}, and this process can have {most} at most, of which {free} are free; lower {flag}"
    );
    if asked > free {
        tracing::warn!(
            "{flag} is {asked}, and {free} of {most} are free: the system may end processes when it is used; lower {flag}"
        );
    }
    Ok(())
}

/// Memory for keys and values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KvBudget {
    pub(crate) blocks: usize,
    /// The flag that says how much it is.
    pub(crate) flag: &'static str,
    /// Bytes of a block, without the part of layers with windows.
    pub(crate) block_bytes: usize,
    /// Bytes of a block on disk, with it.
    pub(crate) stored_bytes: usize,
    /// What sequences hold beside blocks.
    pub(crate) beside: Beside,
    /// Bytes of a block of the draft model, which has as many; 0 without one.
    pub(crate) draft_bytes: usize,
    /// Formats of keys and values, as `f16` or `q8/f16`.
    pub(crate) kv: String,
    /// Compute threads.
    pub(crate) threads: usize,
}

impl KvBudget {
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks as u64 * self.block_bytes as u64
    }

    /// Tokens of one sequence that fit.
    pub(crate) fn tokens(&self) -> usize {
        self.beside.positions_that_fit(self.blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_the_machine_lacks_is_refused_with_what_there_is() {
        let gib = |count: u64| ByteSize(count << 30);
        let memory = |limit: Option<u64>| MachineMemory {
            total_bytes: 24 << 30,
            available_bytes: 20 << 30,
            limit_bytes: limit.map(|limit| limit << 30),
        };
        let check = |limit, asked| check_memory_of(memory(limit), "--cache-ram", gib(asked));
        for (limit, asked, expect) in [
            (None, 20, true),
            (None, 22, true),
            (None, 24, true),
            (None, 200, false),
            (Some(8), 8, true),
            (Some(8), 9, false),
        ] {
            assert_eq!(check(limit, asked).is_ok(), expect, "{limit:?} {asked}");
        }
        let error = check(None, 200).unwrap_err().to_string();
        for word in ["--cache-ram is 200 GiB", "24 GiB at most", "20 GiB are free"] {
            assert!(error.contains(word), "{error} says {word}");
        }
    }
}
