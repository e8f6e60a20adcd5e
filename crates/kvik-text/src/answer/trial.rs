//! Calls in reasoning that is never closed.
//!
//! A call inside reasoning is not made. However, some models omit the tag that ends their reasoning and end the
//! answer with a call: such a call is made. Until the end of the answer its text is held back.

use std::sync::Arc;

use super::AnswerDelta;
use super::read::Offer;

/// Text of reasoning that consists of calls so far, parsed separately.
#[derive(Debug)]
pub(super) struct Trial {
    offer: Arc<Offer>,
    /// Bytes of the text that were passed to the parser.
    read: usize,
    calls: Vec<AnswerDelta>,
    calls_max: usize,
}

impl Trial {
    /// A trial for an answer that may make the calls of this `offer`.
    pub(super) fn new(offer: &Offer) -> Trial {
        // Reasoning is unconstrained, and text after the last allowed call matters too.
        let all = Offer { certain: false, calls_max: usize::MAX, ..offer.clone() };
        Trial { offer: Arc::new(all), read: 0, calls: Vec::new(), calls_max: offer.calls_max }
    }

    /// The offer of the separate parser.
    pub(super) fn offer(&self) -> &Arc<Offer> {
        &self.offer
    }

    /// Parses more of the text that begins with the first call; returns whether it may still consist of calls
    /// only.
    pub(super) fn push(&mut self, text: &str, parse: impl FnOnce(&str) -> Vec<AnswerDelta>) -> bool {
        let new = parse(&text[self.read..]);
        self.read = text.len();
        self.add_calls(new)
    }

    /// The calls, if the answer ends with them; `rest` are the last deltas of the parser.
    pub(super) fn finish(mut self, rest: Vec<AnswerDelta>) -> Option<Vec<AnswerDelta>> {
        let ends = self.add_calls(rest) && !self.calls.is_empty();
        self.calls.truncate(self.calls_max);
        ends.then_some(self.calls)
    }

    /// Adds the next deltas; returns whether they are calls only, as those before them are.
    fn add_calls(&mut self, new: Vec<AnswerDelta>) -> bool {
        let is_call = |delta: &AnswerDelta| match delta {
            AnswerDelta::ToolCall { name, .. } => self.offer.is_offered(name),
            _ => false,
        };
        let has_calls_only = new.iter().all(is_call);
        self.calls.extend(new);
        has_calls_only
    }
}
