//! The memory budget of keys and values.

use std::path::Path;

use anyhow::{bail, ensure};
use kvik_cache::Beside;
use kvik_engine::free_memory::{MachineMemory, default_kv_bytes};

use crate::settings::size::ByteSize;

/// Maximum bytes of a process on this machine; `None` if the system does not report them.
pub(crate) fn machine_bytes() -> Option<u64> {
    MachineMemory::read(Path::new("/")).as_ref().map(most_bytes)
}

fn most_bytes(memory: &MachineMemory) -> u64 {
    memory.limit_bytes.map_or(memory.total_bytes, |limit| limit.min(memory.total_bytes))
}

/// Refuses a size above this machine's memory, and warns about one above the free memory.
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

/// Bytes that keys and values may take in the machine's memory: as requested, or a share of the free memory.
pub(crate) fn kv_bytes(asked: Option<ByteSize>) -> u64 {
    asked.map_or_else(default_kv_bytes, |size| size.0)
}

/// Blocks of the requested budget; or of half of the free memory, but no more than `most`.
pub(super) fn blocks(
    (flag, asked): (&str, Option<ByteSize>),
    block_bytes: usize,
    most: usize,
) -> anyhow::Result<usize> {
    let block_bytes = block_bytes as u64;
    let bytes = kv_bytes(asked);
    let blocks = usize::try_from(bytes / block_bytes).unwrap_or(usize::MAX);
    if blocks == 0 {
        bail!(
            "a KV cache of {} holds not even one block of this model, which takes {}; raise {flag}",
            ByteSize(bytes),
            ByteSize(block_bytes)
        );
    }
    Ok(if asked.is_some() { blocks } else { blocks.min(most) })
}

/// The memory for keys and values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KvBudget {
    pub(crate) blocks: usize,
    /// The flag that sets the budget.
    pub(crate) flag: &'static str,
    /// Bytes of a block, without the part of layers with windows.
    pub(crate) block_bytes: usize,
    /// Bytes of a block on disk, including that part.
    pub(crate) stored_bytes: usize,
    /// Auxiliary state that sequences hold in addition to blocks.
    pub(crate) beside: Beside,
    /// Bytes of a block of the draft model, which has the same number of blocks; 0 without one.
    pub(crate) draft_bytes: usize,
    /// Formats of keys and values, such as `f16` or `q8/f16`.
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

    /// Blocks that may be pinned: as requested, or half of them, so that running requests always have room.
    pub(super) fn pinned_max(&self, asked: Option<ByteSize>) -> usize {
        let asked = asked.map(|size| size.0 / self.block_bytes as u64);
        asked.map_or(self.blocks / 2, |blocks| usize::try_from(blocks).unwrap_or(usize::MAX).min(self.blocks))
    }

    /// The requested context, if it fits; without a request the model's own, or as much of it as fits. If requests drop
    /// positions by default (`forgets`), a context need not fit completely: prompts are compressed while they are read.
    pub(super) fn context(&self, asked: Option<usize>, own: usize, forgets: bool) -> anyhow::Result<usize> {
        let (fits, flag) = (self.tokens(), self.flag);
        match asked {
            Some(asked) if asked > fits && !forgets => {
                let needed = self.beside.needed(asked) as u64 * self.block_bytes as u64;
                bail!(
                    "a context of {asked} tokens needs {} of KV cache and {flag} is {}, which holds {fits} tokens; raise {flag}, lower --context, or keep a part of each prompt with --retain",
                    ByteSize(needed),
                    ByteSize(self.bytes())
                )
            }
            Some(asked) => {
                if asked > own {
                    tracing::warn!("the model was trained for {own} tokens; answers beyond may be poor");
                }
                Ok(asked)
            }
            None if forgets => Ok(own),
            None => Ok(own.min(fits)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(blocks: usize) -> KvBudget {
        let beside = Beside::default();
        let block_bytes = 48 << 10;
        let stored_bytes = block_bytes;
        let (flag, kv) = ("--cache-ram", "f16".to_owned());
        KvBudget { blocks, flag, block_bytes, stored_bytes, beside, draft_bytes: 0, kv, threads: 1 }
    }

    #[test]
    fn the_context_fits_the_budget() {
        let check = |asked, own, blocks, expect| {
            assert_eq!(budget(blocks).context(asked, own, false).unwrap(), expect);
        };
        check(None, 2048, 1000, 2048);
        check(None, 40_960, 1000, 16_000);
        check(Some(512), 2048, 1000, 512);
        check(Some(4096), 2048, 1000, 4096);
    }

    #[test]
    fn a_context_that_is_forgotten_on_the_way_need_not_fit() {
        let check = |asked, expect| assert_eq!(budget(1000).context(asked, 40_960, true).unwrap(), expect);
        check(None, 40_960);
        check(Some(32_768), 32_768);
    }

    #[test]
    fn a_context_that_does_not_fit_is_refused_with_the_numbers() {
        let error = budget(1000).context(Some(32_768), 40_960, false).unwrap_err().to_string();
        for word in ["32768", "96 MiB", "46.9 MiB", "16000", "--cache-ram", "--retain"] {
            assert!(error.contains(word), "{error} says {word}");
        }
    }

    #[test]
    fn half_of_the_budget_may_be_pinned_by_default() {
        let check = |asked: Option<u64>, blocks| {
            assert_eq!(budget(1000).pinned_max(asked.map(ByteSize)), blocks, "{asked:?}");
        };
        check(None, 500);
        check(Some(1), 0);
        check(Some(300 * (48 << 10)), 300);
        check(Some(u64::MAX), 1000);
    }

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
