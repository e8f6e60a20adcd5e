//! The loops that ended answers.

use kvik_engine::api::{Event, FinishReason, Repetition};
use serde::Serialize;

use crate::described::JsonSchema;

/// An answer that was ended because it only repeated itself.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Loop")]
pub(crate) struct LoopReport {
    /// The answer, among those to its prompt.
    choice: u32,
    /// Tokens of what it repeated.
    period_tokens: usize,
    /// Tokens of the answer before that.
    start_token: usize,
}

impl LoopReport {
    /// The loop with which an event ends an answer.
    pub(super) fn of(event: &Event) -> Option<LoopReport> {
        match *event {
            Event::Finished { choice, reason: FinishReason::Loop(Repetition { period, start, .. }) } => {
                Some(LoopReport { choice, period_tokens: period, start_token: start })
            }
            _ => None,
        }
    }
}

/// Drops from the end of an answer's text what follows the second copy, if the answer was ended as a loop.
pub(crate) fn cut(text: &mut String, reason: FinishReason) {
    if let FinishReason::Loop(Repetition { surplus_bytes, .. }) = reason {
        text.truncate(text.floor_char_boundary(text.len().saturating_sub(surplus_bytes)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_copies_are_left_of_a_loop() {
        let check = |text: &str, surplus_bytes: usize, expect: &str| {
            let mut said = text.to_owned();
            cut(&mut said, FinishReason::Loop(Repetition { period: 1, start: 0, surplus_bytes }));
            assert_eq!(said, expect);
        };
        check("a. a. a. a. ", 6, "a. a. ");
        check("éé", 1, "é");
        check("a", 7, "");
        let mut said = "a".to_owned();
        cut(&mut said, FinishReason::Length);
        assert_eq!(said, "a");
    }
}
