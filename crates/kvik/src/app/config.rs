//! What whoever starts a server chooses for it and its models.

use std::{path::PathBuf, sync::Arc};

use kvik_memory::{memory::MemoryConfig, records::Records, shared::SharedRecords};

use super::spans::Spans;
use crate::{
    accounts::{prices::Prices, tenants::Secret},
    clock::Clock,
    http::origins::Senders,
    settings::{sampling::SamplingArgs, size::ByteSize},
};

/// How the server treats its clients.
#[derive(Clone)]
pub(crate) struct AppConfig {
    /// Whom requests may come from.
    pub(crate) senders: Senders,
    /// What runs is shown at `/slots`.
    pub(crate) shows_slots: bool,
    /// Requests for other models are refused, not answered by this one.
    pub(crate) strict_model: bool,
    /// Longest body.
    pub(crate) body_limit: ByteSize,
    /// What tokens cost, for tenants without prices of their own.
    pub(crate) prices: Option<Prices>,
    /// By which rates are limited.
    pub(crate) clock: Clock,
    /// Prompts that the engine takes, running and waiting.
    pub(crate) admission_slots: usize,
    /// Where kept prompts are written down; absent where nothing can be.
    pub(crate) records: Option<Records>,
    /// Where conversations are written down; absent likewise.
    pub(crate) conversations: Option<Records>,
    /// Where nodes share them; absent where this one is alone.
    pub(crate) shared_records: Option<Arc<dyn SharedRecords>>,
    /// How long conversations go on.
    pub(crate) memory: MemoryConfig,
    /// Seals compaction items; with none they last as long as the process.
    pub(crate) secret: Option<Secret>,
    /// Where spans of answers go, if anywhere.
    pub(crate) spans: Option<Arc<Spans>>,
    /// What holds where a request does not say it.
    pub(crate) sampling: SamplingArgs,
    /// Where it is noted what was computed for conversations; absent where they end with the process.
    pub(crate) state_dir: Option<PathBuf>,
    /// Directory of the disk cache, also of models that are not in memory.
    pub(crate) cache_disk: Option<PathBuf>,
}
