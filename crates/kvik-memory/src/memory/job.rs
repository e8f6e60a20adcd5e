//! Work after an answer, as data.

use std::sync::Arc;

use serde_json::Value;

use super::book::Summary;
use super::held::HeldHistory;
use super::host::Host;
use super::latest::Wanted;
use super::render::{ComputeTerms, Render};
use super::words::Wording;
use crate::context::summaries::Replaced;

/// Work after an answer, and the caller it is done for.
pub(super) struct MemoryJob<H: Host> {
    pub(super) caller: H::Caller,
    pub(super) task: MemoryTask<H::Error>,
    pub(super) wanted: Wanted,
    pub(super) pending: Pending,
}

/// Counter of the work after answers: each unit holds a clone.
#[derive(Clone, Default)]
pub struct Pending(Arc<()>);

impl Pending {
    /// Number of units that have begun and not ended.
    pub fn count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

/// Kinds of work after an answer.
pub(super) enum MemoryTask<E> {
    /// Makes a summary, and prefills the conversation as it continues after it, according to
    /// [`Latest`](super::latest::Latest).
    Rebuild(Arc<Rebuild<E>>),
    /// Prefills these messages.
    Ahead { messages: Vec<Value>, render: Render<E>, terms: ComputeTerms },
}

/// Input of a summary.
pub(super) struct Rebuild<E> {
    pub(super) history: Arc<HeldHistory>,
    /// The previous summary.
    pub(super) before: Option<Summary>,
    /// Number of messages that the new summary covers in all.
    pub(super) covers: usize,
    /// Maximum tokens of the new summary.
    pub(super) summary_max: usize,
    /// Approximate tokens of messages that are summarised at a time.
    pub(super) chunk_max: usize,
    pub(super) wording: Wording,
    pub(super) render: Render<E>,
    pub(super) terms: ComputeTerms,
}

impl<E> Rebuild<E> {
    /// Messages that the new summary covers in addition to the previous one.
    pub(super) fn let_go(&self) -> &[Value] {
        self.history.let_go(self.covers)
    }

    /// Text of the previous summary.
    pub(super) fn old(&self) -> &str {
        self.before.as_ref().map_or("", |summary| &summary.text)
    }

    /// The messages and the previous summary, which the new one replaces.
    pub(super) fn replaced(&self) -> Replaced<'_> {
        Replaced { summary: self.old(), messages: self.let_go() }
    }
}
