//! How far a prompt is computed, in the words of llama-server's `return_progress`.

use std::time::Instant;

use serde::Serialize;

use crate::described::JsonSchema;

/// Tokens of a prompt: those from the cache, those stored so far (these included), and all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    pub(crate) cached: usize,
    pub(crate) done: usize,
    pub(crate) total: usize,
}

/// How far a prompt is computed.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub(crate) struct PromptProgress {
    total: usize,
    cache: usize,
    processed: usize,
    time_ms: u64,
}

impl Progress {
    /// `prompt_progress`, of a request that came at `since`.
    pub(crate) fn since(self, since: Instant) -> PromptProgress {
        PromptProgress {
            total: self.total,
            cache: self.cached,
            processed: self.done,
            time_ms: since.elapsed().as_millis() as u64,
        }
    }
}
