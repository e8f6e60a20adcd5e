//! Who counts what is read of conversations, and what becomes of summaries.

/// What a turn reads of its conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadPart {
    /// All of it.
    All,
    /// A summary, and what follows it.
    Summary,
    /// Its end: something was let go that no summary covers.
    End,
}

/// What became of a summary that was due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SummaryOutcome {
    /// It was made.
    Made,
    /// The model said nothing: what it was to cover is gone.
    Empty,
    /// It could not be asked; the next turn tries again.
    Failed,
}

/// Counts.
pub trait Observer: Send + Sync + 'static {
    /// A turn begins that reads this, and so many exchanges that are quoted.
    fn turn(&self, read: ReadPart, quotes: usize);

    /// A summary that was due has come to something.
    fn summary(&self, outcome: SummaryOutcome);
}

/// Counts nothing.
impl Observer for () {
    fn turn(&self, _: ReadPart, _: usize) {}

    fn summary(&self, _: SummaryOutcome) {}
}
