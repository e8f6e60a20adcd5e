//! Settings of a server and its models, chosen by the operator.

use std::{path::PathBuf, sync::Arc};

use kvik_memory::{memory::MemoryConfig, records::Records, shared::SharedRecords};

use super::spans::Spans;
use crate::{
    accounts::{prices::Prices, tenants::Secret},
    clock::Clock,
    http::origins::Senders,
    settings::{sampling::SamplingArgs, size::ByteSize},
};

/// Settings that apply to clients of the server.
#[derive(Clone)]
pub(crate) struct AppConfig {
    /// Origins and hosts that requests may come from.
    pub(crate) senders: Senders,
    /// Whether `/slots` shows running requests.
    pub(crate) shows_slots: bool,
    /// Whether requests that name other models are refused rather than answered by this one.
    pub(crate) strict_model: bool,
    /// Maximum size of a body.
    pub(crate) body_limit: ByteSize,
    /// Token prices for tenants without their own.
    pub(crate) prices: Option<Prices>,
    /// Clock of the rate limits.
    pub(crate) clock: Clock,
    /// Prompts that the engine admits, running and waiting.
    pub(crate) admission_slots: usize,
    /// Records of pinned prompts; absent where nothing can be written.
    pub(crate) records: Option<Records>,
    /// Records of conversations; absent where nothing can be written.
    pub(crate) conversations: Option<Records>,
    /// Store in which nodes share conversations; absent for a single node.
    pub(crate) shared_records: Option<Arc<dyn SharedRecords>>,
    /// Settings of conversations that outgrow the context.
    pub(crate) memory: MemoryConfig,
    /// Secret that seals compaction items; without one they last as long as the process.
    pub(crate) secret: Option<Secret>,
    /// Exporter of answers' spans, if any.
    pub(crate) spans: Option<Arc<Spans>>,
    /// Defaults for sampling parameters that a request omits.
    pub(crate) sampling: SamplingArgs,
    /// Directory of the log of prompts computed for conversations; absent where conversations end with the
    /// process.
    pub(crate) state_dir: Option<PathBuf>,
    /// Directory of the disk cache, also of models that are not in memory.
    pub(crate) cache_disk: Option<PathBuf>,
}
