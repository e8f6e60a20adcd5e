//! Requests of the operating system, and statistics.

use crate::error::signed;

/// Amount of memory that the system requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
pub enum MemoryPressure {
    /// Half of the cached prefixes, the least valuable ones, and all free memory.
    Moderate,
    /// Three quarters of the cached prefixes.
    High,
    /// All that is neither pinned nor in use.
    Critical,
}

/// Memory that was released to the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Record)]
pub struct Released {
    /// Bytes of cached prefixes that were evicted.
    pub evicted_bytes: i64,
    /// Free bytes, which take no memory until they are used again.
    pub free_bytes: i64,
}

/// State of the disk after a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Record)]
pub struct Flushed {
    /// True if no request runs or waits.
    pub is_idle: bool,
    /// Number of computed blocks that are still to be written.
    pub unwritten_blocks: i64,
}

/// Statistics of the engine after its last step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Record)]
pub struct Stats {
    /// Number of answers being computed.
    pub running: i64,
    /// Number of waiting answers.
    pub waiting: i64,
    /// Bytes for keys and values.
    pub kv_bytes: i64,
    /// Bytes that hold cached prefixes.
    pub kv_cached_bytes: i64,
    /// Bytes that only running answers use.
    pub kv_running_bytes: i64,
    /// Bytes that windows and states of layers take in addition, for running answers and cached prefixes.
    pub kv_withheld_bytes: i64,
    /// Free bytes.
    pub kv_free_bytes: i64,
    /// Prompt tokens so far, except those of summaries and next turns, which are computed behind answers.
    pub prompt_tokens: i64,
    /// Those of them that came from the cache.
    pub cached_tokens: i64,
    /// Tokens generated so far.
    pub generated_tokens: i64,
    /// Statistics of the cache on disk, if there is one.
    pub disk: Option<DiskStats>,
}

/// Statistics of the cache on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Record)]
pub struct DiskStats {
    /// Capacity in blocks.
    pub blocks: i64,
    /// Number of stored blocks.
    pub used_blocks: i64,
    /// Number of computed blocks that are still to be written.
    pub unwritten_blocks: i64,
}

impl From<MemoryPressure> for kvik_library::MemoryPressure {
    fn from(level: MemoryPressure) -> kvik_library::MemoryPressure {
        match level {
            MemoryPressure::Moderate => kvik_library::MemoryPressure::Moderate,
            MemoryPressure::High => kvik_library::MemoryPressure::High,
            MemoryPressure::Critical => kvik_library::MemoryPressure::Critical,
        }
    }
}

impl From<kvik_library::Released> for Released {
    fn from(released: kvik_library::Released) -> Released {
        Released { evicted_bytes: signed(released.evicted_bytes), free_bytes: signed(released.free_bytes) }
    }
}

impl From<kvik_library::Flushed> for Flushed {
    fn from(flushed: kvik_library::Flushed) -> Flushed {
        Flushed { is_idle: flushed.is_idle, unwritten_blocks: signed(flushed.unwritten_blocks) }
    }
}

impl From<kvik_library::Stats> for Stats {
    fn from(stats: kvik_library::Stats) -> Stats {
        Stats {
            running: signed(stats.running),
            waiting: signed(stats.waiting),
            kv_bytes: signed(stats.kv_bytes),
            kv_cached_bytes: signed(stats.kv_cached_bytes),
            kv_running_bytes: signed(stats.kv_running_bytes),
            kv_withheld_bytes: signed(stats.kv_withheld_bytes),
            kv_free_bytes: signed(stats.kv_free_bytes),
            prompt_tokens: signed(stats.prompt_tokens),
            cached_tokens: signed(stats.cached_tokens),
            generated_tokens: signed(stats.generated_tokens),
            disk: stats.disk.map(|disk| DiskStats {
                blocks: signed(disk.blocks),
                used_blocks: signed(disk.used_blocks),
                unwritten_blocks: signed(disk.unwritten_blocks),
            }),
        }
    }
}
