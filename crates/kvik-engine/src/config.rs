//! How an engine is set up.

use kvik_cache::Namespaces;

/// Settings of an engine, beside those of its cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineConfig {
    /// Positions a sequence may have at most.
    pub context_tokens: usize,
    /// Sequences that run at the same time at most.
    pub parallel_max: usize,
    /// Requests that wait at most.
    pub waiting_max: usize,
    /// Choices of one request at most.
    pub choices_max: u32,
    /// Prefill rows of a step at most, while nobody decodes.
    pub prefill_rows_max: usize,
    /// Prefill rows of a step at most, while somebody decodes: the longest that a stream stalls.
    pub prefill_rows_mixed_max: usize,
    /// Bytes of one KV block, for reports.
    pub block_bytes: usize,
    /// Digest of the model's weights and configuration.
    pub model_digest: [u8; 32],
    /// Name of the KV format, keys and values, as `q8/q4`.
    pub kv_format: String,
}

impl EngineConfig {
    /// What requests of this engine may share in: the namespaces of its model and KV format.
    pub fn namespaces(&self) -> Namespaces<'_> {
        Namespaces { model: self.model_digest, kv_format: &self.kv_format, adapter: None }
    }

    /// Rows of a batch at most: a decode row for each sequence, and prefill.
    pub fn batch_rows_max(&self) -> usize {
        self.parallel_max + self.prefill_rows_max.max(self.prefill_rows_mixed_max)
    }
}
