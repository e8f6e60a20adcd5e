//! Numbers about a running engine.

use kvik_cache::CacheStats;
use kvik_cache::tier::TierStats;

/// What was done since the engine started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Batches computed.
    pub steps: u64,
    /// Prompt tokens of the requests admitted.
    pub prompt_tokens: u64,
    /// Prompt tokens that came from the cache.
    pub reused_tokens: u64,
    /// Prompt tokens computed.
    pub computed_tokens: u64,
    /// Tokens computed again after a preemption.
    pub recomputed_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Sequences preempted for want of blocks.
    pub preemptions: u64,
    /// Requests that ended as they should.
    pub completed: u64,
    /// Requests whose listener went away.
    pub cancelled: u64,
    /// Requests that failed.
    pub failed: u64,
}

/// Numbers about the tier below RAM.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DiskStats {
    /// Its blocks, and what was done with them.
    pub tier: TierStats,
    /// Blocks on their way to the disk.
    pub writing: usize,
    /// Prefixes that are being read.
    pub loads: usize,
    /// Prefixes still to be loaded since the start.
    pub wishes: usize,
    /// Measured bytes a second of loading, once something was loaded.
    pub load_rate: Option<f64>,
    /// Measured prompt tokens a second of computing, once something was computed.
    pub compute_rate: Option<f64>,
}

/// A picture of the engine, as of its last step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineStats {
    /// Sequences that hold blocks.
    pub running: usize,
    /// Requests not yet admitted.
    pub waiting: usize,
    /// Bytes of the KV budget.
    pub kv_bytes: usize,
    /// Bytes of blocks that belong to one running sequence.
    pub kv_owned_bytes: usize,
    /// Bytes of blocks in the prefix tree.
    pub kv_shared_bytes: usize,
    /// Bytes of blocks that hold nothing.
    pub kv_free_bytes: usize,
    /// What the engine did.
    pub counters: Counters,
    /// What the tier below RAM holds and did, in blocks, when there is one.
    pub disk: Option<DiskStats>,
    /// What the cache holds and did, in blocks.
    pub cache: CacheStats,
}
