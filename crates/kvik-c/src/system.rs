//! What an operating system asks for, and numbers.

use kvik_library::{MemoryPressure, Stats};

use crate::model::KvikModel;
use crate::status::{Failure, KvikStatus, call};
use crate::text::{put, reference};

/// How much memory the system wants back.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvikMemoryPressure {
    /// Half of what is cached, and all that is free.
    Moderate = 0,
    /// Three quarters of what is cached.
    High = 1,
    /// All that is not kept under a name or in use.
    Critical = 2,
}

/// The engine after its last step. Where there is no disk its numbers are 0.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvikStats {
    /// Answers being computed.
    pub running: u64,
    /// Answers that wait.
    pub waiting: u64,
    /// Bytes for keys and values.
    pub kv_bytes: u64,
    /// Of these, bytes that hold cached prefixes.
    pub kv_cached_bytes: u64,
    /// Of these, bytes that hold nothing.
    pub kv_free_bytes: u64,
    /// Prompt tokens so far.
    pub prompt_tokens: u64,
    /// Of these, tokens that came from the cache.
    pub cached_tokens: u64,
    /// Tokens generated so far.
    pub generated_tokens: u64,
    /// Blocks on disk.
    pub disk_blocks: u64,
    /// Computed blocks that are still to be written.
    pub unwritten_blocks: u64,
}

/// Gives memory back to the system, as much as `level`, one of `KvikMemoryPressure`, says: computed blocks first go to the
/// disk, for which they have 50 ms. `evicted_bytes` learns how many bytes of cached prefixes were evicted.
///
/// # Safety
/// `model` is an open handle, `evicted_bytes` null or a place.
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

/// Gets ready to be killed: cancels all answers and waits up to 100 ms, and for the step that runs, until all that was
/// computed is on disk. `unwritten_blocks` learns what is not.
///
/// # Safety
/// `model` is an open handle, `unwritten_blocks` null or a place.
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

/// The engine's numbers after its last step.
///
/// # Safety
/// `model` is an open handle, `stats` null or a place.
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
            kv_free_bytes: stats.kv_free_bytes as u64,
            prompt_tokens: stats.prompt_tokens,
            cached_tokens: stats.cached_tokens,
            generated_tokens: stats.generated_tokens,
            disk_blocks: disk(|disk| disk.used_blocks),
            unwritten_blocks: disk(|disk| disk.unwritten_blocks),
        }
    }
}
