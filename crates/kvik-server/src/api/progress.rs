//! Prompt processing progress, in the format of llama-server's `return_progress`.

use std::time::Instant;

use serde::Serialize;

use crate::described::JsonSchema;

/// Token counts of a prompt: read from the cache, stored so far (including the cached ones), and in total.
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
    /// Formats `prompt_progress` for a request received at `since`.
    pub(crate) fn since(self, since: Instant) -> PromptProgress {
        PromptProgress {
            total: self.total,
            cache: self.cached,
            processed: self.done,
            time_ms: since.elapsed().as_millis() as u64,
        }
    }
}
