//! What is to be done behind an answer, as data.

use std::sync::Arc;

use serde_json::Value;

use super::book::Summary;
use super::held::HeldHistory;
use super::latest::Wanted;
use super::render::Render;
use super::words::Wording;
use crate::app::keys::Caller;

/// What is to be done behind an answer, and for whom.
pub(crate) struct MemoryJob {
    pub(super) caller: Caller,
    pub(super) task: MemoryTask,
    pub(super) wanted: Wanted,
    pub(super) pending: Pending,
}

/// What is to be done behind answers: as many as there are clones.
#[derive(Clone, Default)]
pub(crate) struct Pending(Arc<()>);

impl Pending {
    /// What was begun and has not ended.
    pub(crate) fn count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

/// What is to be done.
pub(crate) enum MemoryTask {
    /// A summary is made, and the conversation is computed as it goes on behind it, which [`Latest`](super::latest::Latest)
    /// says.
    Rebuild(Arc<Rebuild>),
    /// These messages are computed.
    Ahead { messages: Vec<Value>, render: Render },
}

/// What a summary is made of.
pub(crate) struct Rebuild {
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
    pub(super) render: Render,
}

impl Rebuild {
    /// The messages that it covers beyond the summary before it.
    pub(super) fn let_go(&self) -> &[Value] {
        self.history.let_go(self.covers)
    }

    /// The summary so far.
    pub(super) fn old(&self) -> &str {
        self.before.as_ref().map_or("", |summary| &summary.text)
    }
}
