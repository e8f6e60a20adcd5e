//! Statistics of a model: contents of its memory, reuse, and what a prompt would find in the cache.

use kvik_cache::StopReason;
use kvik_cache::tier::Level;
use kvik_engine::api::Probe;
use kvik_engine::stats::EngineStats;

/// Statistics of the engine after its last step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Number of answers being computed.
    pub running: usize,
    /// Number of waiting answers.
    pub waiting: usize,
    /// Bytes for keys and values.
    pub kv_bytes: usize,
    /// Bytes that hold cached prefixes.
    pub kv_cached_bytes: usize,
    /// Bytes that only running answers use.
    pub kv_running_bytes: usize,
    /// Bytes that windows and states of layers take in addition, for running answers and cached prefixes.
    pub kv_withheld_bytes: usize,
    /// Free bytes. After memory was returned to the system, they take no physical memory.
    pub kv_free_bytes: usize,
    /// Prompt tokens so far, except those of summaries and next turns, which are computed behind answers.
    pub prompt_tokens: u64,
    /// Those of them that came from the cache.
    pub cached_tokens: u64,
    /// Tokens generated so far.
    pub generated_tokens: u64,
    /// Statistics of the cache on disk, if there is one.
    pub disk: Option<DiskStats>,
}

/// Statistics of the cache on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskStats {
    /// Capacity in blocks.
    pub blocks: usize,
    /// Number of stored blocks.
    pub used_blocks: usize,
    /// Number of computed blocks that are still to be written.
    pub unwritten_blocks: usize,
}

/// The part of a prompt that is cached now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens that would not be computed.
    pub known_tokens: usize,
    /// Known tokens that would be read from disk.
    pub disk_tokens: usize,
    /// Reason why no more are known.
    pub reason: StopReason,
    /// Text of the first unknown token; `None` if all are known.
    pub stopped_at: Option<String>,
}

/// Embedding of a text.
#[derive(Debug, Clone, PartialEq)]
pub struct Embedding {
    /// Vector `[d_model]`, of length 1.
    pub vector: Vec<f32>,
    /// Tokens of the text.
    pub prompt_tokens: usize,
    /// Tokens that came from the cache.
    pub cached_tokens: usize,
}

/// Logits of tokens for the next position.
#[derive(Debug, Clone, PartialEq)]
pub struct Logits {
    /// Logits in the requested order.
    pub values: Vec<f32>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens that came from the cache.
    pub cached_tokens: usize,
}

impl Embedding {
    /// Normalises a hidden state.
    pub(crate) fn new(hidden: Vec<f32>, prompt_tokens: usize, cached_tokens: usize) -> Embedding {
        let length = hidden.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        // A zero vector stays as it is.
        let length = if length > 0.0 { length } else { 1.0 };
        let vector = hidden.into_iter().map(|x| (f64::from(x) / length) as f32).collect();
        Embedding { vector, prompt_tokens, cached_tokens }
    }
}

impl Explanation {
    pub(crate) fn new(probe: Probe, stopped_at: Option<String>) -> Explanation {
        let Probe { prompt_tokens, known_tokens, loaded, stop, .. } = probe;
        let disk_tokens = loaded[Level::Disk];
        Explanation { prompt_tokens, known_tokens, disk_tokens, reason: stop, stopped_at }
    }
}

impl From<EngineStats> for Stats {
    fn from(stats: EngineStats) -> Stats {
        let disk = stats.disk.map(|disk| DiskStats {
            blocks: disk.tier.slots,
            used_blocks: disk.tier.used,
            unwritten_blocks: disk.writing,
        });
        Stats {
            running: stats.running,
            waiting: stats.waiting,
            kv_bytes: stats.kv_bytes,
            kv_cached_bytes: stats.kv_shared_bytes,
            kv_running_bytes: stats.kv_owned_bytes,
            kv_withheld_bytes: stats.kv_withheld_bytes,
            kv_free_bytes: stats.kv_free_bytes,
            prompt_tokens: stats.counters.prompt_tokens,
            cached_tokens: stats.counters.reused_tokens,
            generated_tokens: stats.counters.generated_tokens,
            disk,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embeddings_have_length_one_or_are_nothing() {
        let check = |hidden: &[f32], expect: &[f32]| {
            assert_eq!(Embedding::new(hidden.to_vec(), 1, 0).vector, expect);
        };
        check(&[3.0, 4.0], &[0.6, 0.8]);
        check(&[-2.0], &[-1.0]);
        check(&[0.0, 0.0], &[0.0, 0.0]);
        check(&[1e30, 0.0], &[1.0, 0.0]);
    }
}
