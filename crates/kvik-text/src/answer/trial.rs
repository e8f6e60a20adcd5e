//! Calls in reasoning that is never closed.
//!
//! A call that a model only thinks about is none. Some models forget the tag that ends their reasoning, though, and end the
//! answer with a call: it is made if the answer ends with it. Until then the text is held back.

use std::sync::Arc;

use super::AnswerDelta;
use super::read::Offer;

/// Text of reasoning that is calls so far, as a parser of its own reads it.
#[derive(Debug)]
pub(super) struct Trial {
    offer: Arc<Offer>,
    /// Bytes of the text that the parser has.
    read: usize,
    calls: Vec<AnswerDelta>,
    calls_max: usize,
}

impl Trial {
    /// Of an answer that may make the calls of this `offer`.
    pub(super) fn new(offer: &Offer) -> Trial {
        // Nothing holds reasoning to the form, and what follows the last call that is allowed counts too.
        let all = Offer { certain: false, calls_max: usize::MAX, ..offer.clone() };
        Trial { offer: Arc::new(all), read: 0, calls: Vec::new(), calls_max: offer.calls_max }
    }

    /// What its parser takes for calls.
    pub(super) fn offer(&self) -> &Arc<Offer> {
        &self.offer
    }

    /// Has the parser read on in the text that begins with the first call; returns whether it may still be calls and
    /// nothing else.
    pub(super) fn push(&mut self, text: &str, parse: impl FnOnce(&str) -> Vec<AnswerDelta>) -> bool {
        self.calls.extend(parse(&text[self.read..]));
        self.read = text.len();
        self.has_calls_only()
    }

    /// The calls, if the answer ends with them; `rest` is what its parser still had.
    pub(super) fn finish(mut self, rest: Vec<AnswerDelta>) -> Option<Vec<AnswerDelta>> {
        self.calls.extend(rest);
        let ends = self.has_calls_only() && !self.calls.is_empty();
        self.calls.truncate(self.calls_max);
        ends.then_some(self.calls)
    }

    fn has_calls_only(&self) -> bool {
        self.calls
            .iter()
            .all(|delta| matches!(delta, AnswerDelta::ToolCall { name, .. } if self.offer.is_offered(name)))
    }
}
