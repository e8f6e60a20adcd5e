//! Statistics of a running engine.

use std::time::Duration;

use kvik_cache::CacheStats;
use kvik_cache::tier::{TierStats, WritePolicy};

/// The source of a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DraftSource {
    /// Tokens that followed the same tokens in the prompt and the answer so far.
    #[default]
    Lookup,
    /// Tokens that followed them in other requests that share its prefixes, as far as the cache holds them.
    Tree,
    /// Tokens that a constraint forces.
    Grammar,
    /// The most likely tokens of a smaller model.
    Model,
    /// The most likely tokens of the model's own prediction head.
    Head,
}

impl DraftSource {
    /// All sources.
    pub const ALL: [DraftSource; 5] =
        [DraftSource::Lookup, DraftSource::Tree, DraftSource::Grammar, DraftSource::Model, DraftSource::Head];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            DraftSource::Lookup => "lookup",
            DraftSource::Tree => "tree",
            DraftSource::Grammar => "grammar",
            DraftSource::Model => "model",
            DraftSource::Head => "head",
        }
    }
}

/// A set of draft sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftSources(u8);

impl DraftSources {
    /// No source.
    pub const NONE: DraftSources = DraftSources(0);
    /// Every source.
    pub const ALL: DraftSources = DraftSources(u8::MAX);

    /// Adds `source` to the set.
    #[must_use]
    pub fn with(self, source: DraftSource) -> DraftSources {
        DraftSources(self.0 | 1 << source as u8)
    }

    /// Whether the set contains `source`.
    pub fn has(self, source: DraftSource) -> bool {
        self.0 & 1 << source as u8 != 0
    }
}

/// Totals since the engine started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Batches computed.
    pub steps: u64,
    /// Time of the steps that computed them.
    pub step_time: Duration,
    /// The part of it that the model took.
    pub model_time: Duration,
    /// Prompt tokens of admitted requests. Like all counts of prompts and requests here, without those of the background
    /// and of idle time, which are the server's own.
    pub prompt_tokens: u64,
    /// Prompt tokens reused from the cache.
    pub reused_tokens: u64,
    /// Prompt tokens computed; with the reused ones less than `prompt_tokens` where requests were cancelled.
    pub computed_tokens: u64,
    /// Tokens recomputed after a preemption.
    pub recomputed_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Tokens drafted, by source in the order of [`DraftSource::ALL`].
    pub drafted_tokens: [u64; DraftSource::ALL.len()],
    /// Draft tokens that were accepted, in the same order.
    pub accepted_tokens: [u64; DraftSource::ALL.len()],
    /// Sequences preempted because no block was free.
    pub preemptions: u64,
    /// Number of passes of retention policies that memory pressure caused.
    pub tightened: u64,
    /// Requests that ended without an error.
    pub completed: u64,
    /// Requests whose client disconnected.
    pub cancelled: u64,
    /// Requests that failed.
    pub failed: u64,
}

impl Counters {
    /// Share of the prompt tokens that were reused, of those that were either reused or computed; 0 before the first.
    pub fn hit_rate(&self) -> f64 {
        let read = self.reused_tokens + self.computed_tokens;
        if read == 0 { 0.0 } else { self.reused_tokens as f64 / read as f64 }
    }
}

/// What a process does with a disk cache that several may have open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DiskRole {
    /// It reads and writes.
    #[default]
    Writer,
    /// It reads what another one writes, and takes over when that ends.
    Reader {
        /// The process that writes, which may be this one with another engine; `None` if it is not known.
        of: Option<u32>,
    },
}

impl std::fmt::Display for DiskRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            DiskRole::Writer => f.write_str("writes it"),
            DiskRole::Reader { of: None } => f.write_str("reads the cache of another process"),
            DiskRole::Reader { of: Some(pid) } if pid == std::process::id() => {
                f.write_str("reads the cache of another model of this process")
            }
            DiskRole::Reader { of: Some(pid) } => write!(f, "reads the cache of process {pid}"),
        }
    }
}

/// Statistics of the disk tier.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DiskStats {
    /// Whether this process writes it.
    pub role: DiskRole,
    /// Its blocks and their operations.
    pub tier: TierStats,
    /// Blocks queued for the disk or being written.
    pub writing: usize,
    /// Write policy and bytes written.
    pub writes: WriteStats,
    /// Prefixes being read.
    pub loads: usize,
    /// Prefixes that the warm start still has to load.
    pub prefetch_candidates: usize,
    /// Measured loading rate in bytes per second, after the first load.
    pub load_rate: Option<f64>,
    /// Its part in the host's memory, if blocks in use are in a device's memory.
    pub host: Option<HostStats>,
    /// Measured loading rate from there in bytes per second, after the first load.
    pub host_load_rate: Option<f64>,
    /// Measured prefill rate in prompt tokens per second, after the first prefill.
    pub compute_rate: Option<f64>,
}

/// Write policy of a disk, and the bytes written to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteStats {
    /// The policy in force; another one than that of the settings where blocks cannot wait.
    pub policy: WritePolicy,
    /// Blocks of conversations that wait in RAM until they are worth writing or leave it.
    pub waiting_blocks: usize,
    /// Bytes written today to all stores of the directory, as far as this process knows.
    pub today_bytes: u64,
    /// Bytes that a year would come to at the mean rate of the days so far.
    pub year_bytes: u64,
}

/// Blocks in the host's memory, from which blocks of a device's memory can be restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostStats {
    /// Capacity in blocks.
    pub blocks: usize,
    /// Blocks held.
    pub used: usize,
    /// Whether there is no further tier below.
    pub is_last: bool,
}

impl DiskStats {
    /// Whether there is a disk, and not only the host's memory.
    pub fn is_on_disk(&self) -> bool {
        !self.host.is_some_and(|host| host.is_last)
    }
}

/// Statistics of a remote store since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RemoteStats {
    /// Whether lookups are sent to it: after faults they pause for a while.
    pub is_up: bool,
    /// Prompts looked up.
    pub lookups: u64,
    /// Lookups that found something.
    pub hits: u64,
    /// Blocks read.
    pub read_blocks: u64,
    /// Bytes read, as transferred.
    pub read_bytes: u64,
    /// Blocks written.
    pub written_blocks: u64,
    /// Bytes written, as transferred.
    pub written_bytes: u64,
    /// Blocks offered and dropped, because the write queue was full or the store was down.
    pub dropped_blocks: u64,
    /// Blocks waiting to be written.
    pub writing_blocks: usize,
    /// Lookups, reads and writes that failed or came too late.
    pub faults: u64,
    /// Values that were invalid.
    pub corrupt: u64,
}

/// Snapshot of the engine after its last step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineStats {
    /// Sequences that hold blocks.
    pub running: usize,
    /// Those of them that no client waits for: of the background and of idle time.
    pub running_behind: usize,
    /// Requests not yet admitted, except those of the background.
    pub waiting: usize,
    /// Bytes of the KV budget.
    pub kv_bytes: usize,
    /// Bytes of blocks owned by running sequences.
    pub kv_owned_bytes: usize,
    /// Bytes of blocks in the prefix tree.
    pub kv_shared_bytes: usize,
    /// Bytes that windows and states take beside blocks, of sequences and of the cache.
    pub kv_withheld_bytes: usize,
    /// Bytes of free blocks.
    pub kv_free_bytes: usize,
    /// Totals since the engine started.
    pub counters: Counters,
    /// Measured prefill rate in prompt tokens per second, after the first prefill.
    pub compute_rate: Option<f64>,
    /// The disk tier, if the engine has one.
    pub disk: Option<DiskStats>,
    /// The shared store, if the engine has one.
    pub remote: Option<RemoteStats>,
    /// Contents and operations of the cache, in blocks.
    pub cache: CacheStats,
}

impl EngineStats {
    /// Bytes of the KV budget that hold something.
    pub fn kv_used_bytes(&self) -> usize {
        self.kv_owned_bytes + self.kv_shared_bytes + self.kv_withheld_bytes
    }
}
