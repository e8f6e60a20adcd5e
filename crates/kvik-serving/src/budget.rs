//! The memory budget of keys and values.

use std::path::Path;

use anyhow::{anyhow, ensure};
use kvik_engine::free_memory::{MachineMemory, default_kv_bytes};
use kvik_session::{BudgetError, RunnerError};

use crate::settings::size::ByteSize;

/// Maximum bytes of a process on this machine; `None` if the system does not report them.
pub fn machine_bytes() -> Option<u64> {
    MachineMemory::read(Path::new("/")).map(|memory| memory.most_bytes())
}

/// Refuses a size above this machine's memory, and warns about one above the free memory.
pub fn check_memory(flag: &str, asked: ByteSize) -> anyhow::Result<()> {
    let memory = MachineMemory::read(Path::new("/"));
    memory.map_or(Ok(()), |memory| check_memory_of(memory, flag, asked))
}

fn check_memory_of(memory: MachineMemory, flag: &str, asked: ByteSize) -> anyhow::Result<()> {
    let (most, free) = (ByteSize(memory.most_bytes()), ByteSize(memory.available_bytes));
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

/// Bytes that keys and values may take in the machine's memory: as requested, or the share of the free memory where so
/// many budgets take of it.
pub fn kv_bytes(asked: Option<ByteSize>, budgets: u64) -> u64 {
    asked.map_or_else(|| default_kv_bytes(budgets), |size| size.0)
}

/// Words why a budget of this flag is refused.
pub(super) fn refused(error: BudgetError, flag: &str) -> anyhow::Error {
    match error {
        BudgetError::TooSmall { kv_bytes, block_bytes } => anyhow!(
            "a KV cache of {} holds not even one block of this model, which takes {}; raise {flag}",
            ByteSize(kv_bytes),
            ByteSize(block_bytes as u64)
        ),
        BudgetError::ContextTooLarge { context_tokens, fits_tokens, needed_bytes, kv_bytes } => anyhow!(
            "a context of {context_tokens} tokens needs {} of KV cache and {flag} is {}, which holds {fits_tokens} tokens; raise {flag}, lower --context, or keep a part of each prompt with --retain",
            ByteSize(needed_bytes),
            ByteSize(kv_bytes)
        ),
    }
}

/// Words why a model does not get its memory.
pub fn no_memory(error: RunnerError) -> anyhow::Error {
    match error {
        RunnerError::NoMemory { kv_bytes, source } => anyhow::Error::from(source)
            .context(format!("no memory for a KV cache of {}; lower --cache-ram", ByteSize(kv_bytes))),
        #[cfg(feature = "gpu")]
        RunnerError::Device { kv_bytes, source } => anyhow::Error::from(source)
            .context(format!("with a KV cache of {} (--cache-device)", ByteSize(kv_bytes))),
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_that_does_not_fit_is_refused_with_the_numbers() {
        let (kv_bytes, needed_bytes) = (1000 * (48 << 10), 2048 * (48 << 10));
        let (context_tokens, fits_tokens) = (32_768, 16_000);
        let error = BudgetError::ContextTooLarge { context_tokens, fits_tokens, needed_bytes, kv_bytes };
        let error = refused(error, "--cache-ram").to_string();
        for word in ["32768", "96 MiB", "46.9 MiB", "16000", "--cache-ram", "--retain"] {
            assert!(error.contains(word), "{error} says {word}");
        }
    }

    #[test]
    fn a_size_that_was_asked_for_is_not_shared() {
        for budgets in [1, 2] {
            assert_eq!(kv_bytes(Some(ByteSize(5 << 30)), budgets), 5 << 30);
            assert!(kv_bytes(None, budgets) <= 8 << 30);
        }
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
