//! What is to be done behind an answer, as data.

use std::sync::Arc;

use serde_json::Value;

use super::book::Summary;
use super::held::HeldHistory;
use super::host::Host;
use super::latest::Wanted;
use super::render::Render;
use super::words::Wording;

/// What is to be done behind an answer, and for whom.
pub(super) struct MemoryJob<H: Host> {
    pub(super) caller: H::Caller,
    pub(super) task: MemoryTask<H::Error>,
    pub(super) wanted: Wanted,
    pub(super) pending: Pending,
}

/// What is to be done behind answers: as many as there are clones.
#[derive(Clone, Default)]
pub struct Pending(Arc<()>);

impl Pending {
    /// What was begun and has not ended.
    pub fn count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

/// What is to be done.
pub(super) enum MemoryTask<E> {
    /// A summary is made, and the conversation is computed as it goes on behind it, which [`Latest`](super::latest::Latest)
    /// says.
    Rebuild(Arc<Rebuild<E>>),
    /// These messages are computed.
    Ahead { messages: Vec<Value>, render: Render<E> },
}

/// What a summary is made of.
pub(super) struct Rebuild<E> {
    pub(super) history: Arc<HeldHistory>,
    /// The summary before it.
    pub(super) before: Option<Summary>,
    /// Messages that it covers in all.
    pub(super) covers: usize,
    /// Its tokens at most.
    pub(super) summary_max: usize,
    /// Tokens of messages that are read at a time, about.
    pub(super) chunk_max: usize,
    pub(super) wording: Wording,
    pub(super) render: Render<E>,
}

impl<E> Rebuild<E> {
    /// The messages that it covers beyond the summary before it.
    pub(super) fn let_go(&self) -> &[Value] {
        self.history.let_go(self.covers)
    }

    /// The summary so far.
    pub(super) fn old(&self) -> &str {
        self.before.as_ref().map_or("", |summary| &summary.text)
    }
}
