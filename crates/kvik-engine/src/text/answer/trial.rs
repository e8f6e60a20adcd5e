//! Calls in reasoning that is never closed.
//!
//! A call that a model only thinks about is none. Some models forget the tag that ends their reasoning, though, and end the
//! answer with a call: it is made if the answer ends with it. Until then the text is held back.

use std::sync::Arc;

use super::AnswerDelta;
use super::read::Offer;
use super::reasoning::ReasoningTags;
use super::tagged::Tagged;

/// Text of reasoning that is calls so far.
#[derive(Debug)]
pub(super) struct Trial {
    parser: Box<Tagged>,
    /// Bytes of the text that the parser has.
    read: usize,
    calls: Vec<AnswerDelta>,
    calls_max: usize,
}

impl Trial {
    pub(super) fn new(tags: ReasoningTags, offer: &Offer, salt: &str) -> Trial {
        // Nothing holds reasoning to the form, and what follows the last call that is allowed counts too.
        let all = Offer { certain: false, calls_max: usize::MAX, ..offer.clone() };
        let parser = Box::new(Tagged::new(tags, false, Some(Arc::new(all)), salt));
        Trial { parser, read: 0, calls: Vec::new(), calls_max: offer.calls_max }
    }

    /// Reads on in the text that begins with the first call; returns whether it may still be calls and nothing else.
    pub(super) fn push(&mut self, text: &str) -> bool {
        let deltas = self.parser.push(&text[self.read..]);
        self.read = text.len();
        self.calls.extend(deltas);
        self.has_calls_only()
    }

    /// The calls, if the answer ends with them.
    pub(super) fn finish(mut self) -> Option<Vec<AnswerDelta>> {
        let deltas = self.parser.finish();
        self.calls.extend(deltas);
        let ends = self.has_calls_only() && !self.calls.is_empty();
        self.calls.truncate(self.calls_max);
        ends.then_some(self.calls)
    }

    fn has_calls_only(&self) -> bool {
        self.calls
            .iter()
            .all(|delta| matches!(delta, AnswerDelta::ToolCall { name, .. } if self.parser.is_offered(name)))
    }
}
