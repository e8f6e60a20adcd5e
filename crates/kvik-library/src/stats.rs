//! Numbers of a model: what its memory holds, what was reused, and what a prompt would find.

use kvik_cache::StopReason;
use kvik_engine::api::Probe;
use kvik_engine::stats::EngineStats;

/// The engine after its last step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Answers being computed.
    pub running: usize,
    /// Answers that wait.
    pub waiting: usize,
    /// Bytes for keys and values.
    pub kv_bytes: usize,
    /// Of these, bytes that hold cached prefixes.
    pub kv_cached_bytes: usize,
    /// Of these, bytes of running answers alone.
    pub kv_running_bytes: usize,
    /// Of these, bytes that hold nothing. After memory was given back they take none.
    pub kv_free_bytes: usize,
    /// Prompt tokens so far.
    pub prompt_tokens: u64,
    /// Of these, prompt tokens that came from the cache.
    pub cached_tokens: u64,
    /// Tokens generated so far.
    pub generated_tokens: u64,
    /// The cache on disk, if there is one.
    pub disk: Option<DiskStats>,
}

/// The cache on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskStats {
    /// Blocks there is room for.
    pub blocks: usize,
    /// Blocks held.
    pub used_blocks: usize,
    /// Computed blocks that are still to be written.
    pub unwritten_blocks: usize,
}

/// What a prompt would find in the cache now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, tokens that would not be computed.
    pub known_tokens: usize,
    /// Of these, tokens that would be read from disk.
    pub disk_tokens: usize,
    /// Why no more are known.
    pub reason: StopReason,
    /// The text of the first token that is not known; none where all are.
    pub stopped_at: Option<String>,
}

/// What a text means to the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Embedding {
    /// `[d_model]`, of length 1.
    pub vector: Vec<f32>,
    /// Tokens of the text.
    pub prompt_tokens: usize,
    /// Of these, tokens that came from the cache.
    pub cached_tokens: usize,
}

/// How likely tokens are to come next.
#[derive(Debug, Clone, PartialEq)]
pub struct Logits {
    /// In the order in which they were asked for.
    pub values: Vec<f32>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, tokens that came from the cache.
    pub cached_tokens: usize,
}

impl Embedding {
    /// Of a hidden state of whatever length it has.
    pub(crate) fn new(hidden: Vec<f32>, prompt_tokens: usize, cached_tokens: usize) -> Embedding {
        let length = hidden.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        // One of zeros stays as it is.
        let length = if length > 0.0 { length } else { 1.0 };
        let vector = hidden.into_iter().map(|x| (f64::from(x) / length) as f32).collect();
        Embedding { vector, prompt_tokens, cached_tokens }
    }
}

impl Explanation {
    pub(crate) fn new(probe: Probe, stopped_at: Option<String>) -> Explanation {
        let Probe { prompt_tokens, known_tokens, disk_tokens, stop, .. } = probe;
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
