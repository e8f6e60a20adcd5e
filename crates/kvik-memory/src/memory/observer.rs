//! Counting of what turns read, and of the outcomes of summaries.

use super::book::SummaryKind;
use crate::context::summaries::Flaw;

/// The part of its conversation that a turn reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadPart {
    /// The whole conversation.
    All,
    /// A summary, and what follows it.
    Summary,
    /// Only its end: messages were dropped that no summary covers.
    End,
}

/// Outcome of a summary that was due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SummaryOutcome {
    /// The summary was made, in this way.
    Made(SummaryKind),
    /// The model gave no text that can be used, and no sentence can be extracted: the messages that it was to cover are lost.
    Empty,
    /// The request failed; the next turn tries again.
    Failed,
}

/// Receiver of counts.
pub trait Observer: Send + Sync + 'static {
    /// A turn begins that reads `read` and quotes `quotes` exchanges.
    fn turn(&self, read: ReadPart, quotes: usize);

    /// A text of the model was refused as a summary.
    fn refused(&self, flaw: Flaw);

    /// A summary that was due has ended.
    fn summary(&self, outcome: SummaryOutcome);
}

/// Ignores all counts.
impl Observer for () {
    fn turn(&self, _: ReadPart, _: usize) {}

    fn refused(&self, _: Flaw) {}

    fn summary(&self, _: SummaryOutcome) {}
}
