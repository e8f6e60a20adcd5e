//! Requests of the operating system, and statistics.

use kvik_library::{MemoryPressure, Stats};

use crate::model::KvikModel;
use crate::status::{Failure, KvikStatus, call};
use crate::text::{put, reference};

/// Amount of memory that the system requests.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvikMemoryPressure {
    /// Half of the cached prefixes, the least valuable ones, and all free memory.
    Moderate = 0,
    /// Three quarters of the cached prefixes.
    High = 1,
    /// All that is neither pinned nor in use.
    Critical = 2,
}

/// Statistics of the engine after its last step. Without a disk, its numbers are 0.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvikStats {
    /// Number of answers being computed.
    pub running: u64,
    /// Number of waiting answers.
    pub waiting: u64,
    /// Bytes for keys and values.
    pub kv_bytes: u64,
    /// Bytes that hold cached prefixes.
    pub kv_cached_bytes: u64,
    /// Bytes that windows and states of layers take in addition, for running answers and cached prefixes.
    pub kv_withheld_bytes: u64,
    /// Free bytes.
    pub kv_free_bytes: u64,
    /// Prompt tokens so far, except those of summaries and next turns, which are computed behind answers.
    pub prompt_tokens: u64,
    /// Those of them that came from the cache.
    pub cached_tokens: u64,
    /// Tokens generated so far.
    pub generated_tokens: u64,
    /// Number of blocks on disk.
    pub disk_blocks: u64,
    /// Number of computed blocks that are still to be written.
    pub unwritten_blocks: u64,
}

/// Releases memory to the system, as much as `level`, one of `KvikMemoryPressure`, requests: computed blocks first get
/// 50 ms to reach the disk. Writes to `evicted_bytes` how many bytes of cached prefixes were evicted.
///
/// # Safety
/// `model` is an open handle, `evicted_bytes` null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_on_memory_pressure(
    model: *const KvikModel,
    level: u32,
    evicted_bytes: *mut u64,
) -> KvikStatus {
    call(|| {
        // SAFETY: the caller promises it.
        let model = unsafe { reference(model, "model")? };
        let level = match level {
            level if level == KvikMemoryPressure::Moderate as u32 => MemoryPressure::Moderate,
            level if level == KvikMemoryPressure::High as u32 => MemoryPressure::High,
            level if level == KvikMemoryPressure::Critical as u32 => MemoryPressure::Critical,
            _ => return Err(Failure::argument("level", "is none of KvikMemoryPressure")),
        };
        let released = model.0.on_memory_pressure(level)?;
        // SAFETY: the caller promises it.
        unsafe { put(evicted_bytes, released.evicted_bytes as u64) };
        Ok(())
    })
}

/// Prepares for the end of the process: cancels all answers and waits until all computed blocks are on disk, at most
/// 100 ms and the running step. Writes to `unwritten_blocks` how many are not.
///
/// # Safety
/// `model` is an open handle, `unwritten_blocks` null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_on_background(
    model: *const KvikModel,
    unwritten_blocks: *mut u64,
) -> KvikStatus {
    call(|| {
        // SAFETY: the caller promises it.
        let durable = unsafe { reference(model, "model")? }.0.on_background()?;
        // SAFETY: the caller promises it.
        unsafe { put(unwritten_blocks, durable.unwritten_blocks as u64) };
        Ok(())
    })
}

/// Writes the statistics of the engine after its last step.
///
/// # Safety
/// `model` is an open handle, `stats` null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_stats(model: *const KvikModel, stats: *mut KvikStats) -> KvikStatus {
    call(|| {
        // SAFETY: the caller promises it.
        let numbers = unsafe { reference(model, "model")? }.0.stats();
        // SAFETY: the caller promises it.
        unsafe { put(stats, numbers.into()) };
        Ok(())
    })
}

impl From<Stats> for KvikStats {
    fn from(stats: Stats) -> KvikStats {
        let disk =
            |number: fn(&kvik_library::DiskStats) -> usize| stats.disk.as_ref().map_or(0, number) as u64;
        KvikStats {
            running: stats.running as u64,
            waiting: stats.waiting as u64,
            kv_bytes: stats.kv_bytes as u64,
            kv_cached_bytes: stats.kv_cached_bytes as u64,
            kv_withheld_bytes: stats.kv_withheld_bytes as u64,
            kv_free_bytes: stats.kv_free_bytes as u64,
            prompt_tokens: stats.prompt_tokens,
            cached_tokens: stats.cached_tokens,
            generated_tokens: stats.generated_tokens,
            disk_blocks: disk(|disk| disk.used_blocks),
            unwritten_blocks: disk(|disk| disk.unwritten_blocks),
        }
    }
}
