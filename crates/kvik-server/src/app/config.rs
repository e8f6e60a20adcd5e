//! Settings of a server and its models, chosen by the operator.

use std::{path::PathBuf, sync::Arc};

use kvik_memory::{memory::MemoryConfig, records::Records, shared::SharedRecords};

use super::spans::Spans;
use crate::{
    accounts::{prices::Prices, tenants::Secret},
    clock::Clock,
    http::origins::Senders,
};
use kvik_serving::settings::{sampling::SamplingArgs, size::ByteSize, told_window::ToldWindow};

/// Settings that apply to clients of the server.
#[derive(Clone)]
pub struct AppConfig {
    /// Origins and hosts that requests may come from.
    pub senders: Senders,
    /// Whether `/slots` shows running requests.
    pub shows_slots: bool,
    /// Whether requests that name other models are refused rather than answered by this one.
    pub strict_model: bool,
    /// Whether prompts are settled where requests do not say.
    pub settle_prompts: bool,
    /// Maximum size of a body.
    pub body_limit: ByteSize,
    /// Token prices for tenants without their own.
    pub prices: Option<Prices>,
    /// Clock of the rate limits.
    pub clock: Clock,
    /// Prompts that the engine admits, running and waiting.
    pub admission_slots: usize,
    /// Records of pinned prompts; absent where nothing can be written.
    pub records: Option<Records>,
    /// Records of conversations; absent where nothing can be written.
    pub conversations: Option<Records>,
    /// Store in which nodes share conversations; absent for a single node.
    pub shared_records: Option<Arc<dyn SharedRecords>>,
    /// Settings of conversations that outgrow the context.
    pub memory: MemoryConfig,
    /// Secret that seals compaction items; without one they last as long as the process.
    pub secret: Option<Secret>,
    /// Exporter of answers' spans, if any.
    pub spans: Option<Arc<Spans>>,
    /// Flags with the sampling of requests that set none.
    pub sampling: SamplingArgs,
    /// Names of the model under which clients assume another window than its context.
    pub told_windows: Vec<ToldWindow>,
    /// Directory of the log of prompts computed for conversations; absent where conversations end with the
    /// process.
    pub state_dir: Option<PathBuf>,
    /// Directory of the disk cache, also of models that are not in memory.
    pub cache_disk: Option<PathBuf>,
}
