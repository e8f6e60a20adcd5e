//! Limits that end an answer at a line, as data.

use std::time::Duration;

/// Limits that end an answer at a line, for completions in an editor. The finish reason is
/// [`FinishReason::Length`](super::FinishReason::Length).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LineLimits {
    /// Minimum number of spaces and tabs at the beginning of a line after the first: the answer ends before the first
    /// other character of a line with fewer. 0 for none.
    pub indent_min: usize,
    /// Time since the first token after which a token with a line break ends the answer; `None` for no limit.
    pub time_max: Option<Duration>,
}
