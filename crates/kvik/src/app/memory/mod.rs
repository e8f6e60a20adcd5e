//! Conversations without end: what of a long one a request reads, for clients that send the whole history.
//!
//! ```text
//! system messages + summary | recent messages            a turn: what the model reads of its messages
//!          ^                       |
//!          '---- book <---- rebuild '                    behind the answer: a new summary, and the
//!                                                        conversation as it goes on from it, computed ahead
//! ```
//!
//! Nothing waits for a summary: a turn reads what is ready, and lets the beginning go where nothing is.

pub(crate) mod book;
pub(crate) mod compact;
pub(crate) mod compaction;
pub(crate) mod correct;
mod held;
pub(crate) mod host;
mod identity;
mod job;
mod latest;
mod measure;
pub(crate) mod rebuild;
pub(crate) mod render;
mod report;
mod summary;
pub(crate) mod systems;
pub(crate) mod turn;
mod view;
pub(crate) mod words;
mod write_behind;

use std::sync::{Arc, Mutex, PoisonError};

use kvik_engine::conversation::{MemorySettings, MemorySettingsError};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::accounts::{ledger::Records, tenants::Secret};
use crate::app::metrics::Metrics;
use crate::http::{error::ApiError, readers::Readers};
use crate::serving::Serving;
use book::Book;
use compaction::{Compaction, ForeignItem, Seal};
use held::HeldHistories;
use job::{MemoryJob, Pending};
use latest::Latest;
use measure::Measure;
use systems::Systems;
use words::{Wording, Words};

/// How the server remembers.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryConfig {
    /// For requests that do not say.
    pub(crate) on: bool,
    pub(crate) recent_max: Option<usize>,
    pub(crate) summary_max: Option<usize>,
    pub(crate) trigger_discard: Option<usize>,
    pub(crate) quotes_max: Option<usize>,
    pub(crate) protect_first: bool,
    /// Instead of those that are built in.
    pub(crate) words: Option<Words>,
    /// Seals compaction items; with none they last as long as the process.
    pub(crate) secret: Option<Secret>,
}

impl MemoryConfig {
    /// The bounds for a context of so many tokens.
    pub(crate) fn settings(&self, context: usize) -> Result<MemorySettings, MemorySettingsError> {
        let scaled = MemorySettings::scaled_to(context);
        let settings = MemorySettings {
            recent_max: self.recent_max.unwrap_or(scaled.recent_max),
            summary_max: self.summary_max.unwrap_or(scaled.summary_max),
            trigger_discard: self.trigger_discard.unwrap_or(scaled.trigger_discard),
            quotes_max: self.quotes_max.unwrap_or(scaled.quotes_max),
            protect_first: self.protect_first,
        };
        settings.check(context).map(|()| settings)
    }

    /// Whether anything was said about it, so that bounds which do not fit are a mistake.
    pub(crate) fn is_wanted(&self) -> bool {
        self.on || self.recent_max.or(self.summary_max).or(self.trigger_discard).is_some()
    }
}

/// What memory is made with.
pub(crate) struct Surroundings<'a> {
    pub(crate) serving: Arc<Serving>,
    pub(crate) readers: Arc<Readers>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) records: Option<&'a Records>,
    /// Bytes of histories that are held behind answers, and whether several tenants share them.
    pub(crate) history_bytes: u64,
    pub(crate) is_shared: bool,
}

/// What the server remembers of conversations.
pub(crate) struct Memory {
    pub(crate) on: bool,
    settings: Result<MemorySettings, MemorySettingsError>,
    measure: Measure,
    readers: Arc<Readers>,
    metrics: Arc<Metrics>,
    /// Room for the histories of turns that are being answered.
    histories: Arc<HeldHistories>,
    wording: Wording,
    book: Arc<Book>,
    seal: Seal,
    systems: Systems,
    /// How conversations go on whose summaries are being made.
    latest: Arc<Latest>,
    /// Summaries to make.
    work: UnboundedSender<MemoryJob>,
    /// What is to be done behind answers.
    pub(crate) pending: Pending,
    /// Where they arrive; taken by whoever makes them.
    arriving: Mutex<Option<UnboundedReceiver<MemoryJob>>>,
}

impl Memory {
    /// With what was known when the records were closed.
    pub(crate) fn new(config: &MemoryConfig, around: Surroundings<'_>) -> Arc<Memory> {
        let Surroundings { serving, readers, metrics, records, history_bytes, is_shared } = around;
        let (work, arriving) = unbounded_channel();
        Arc::new(Memory {
            on: config.on,
            settings: config.settings(serving.model.context),
            wording: Wording::new(config.words.clone(), &serving.model.own_name),
            measure: Measure::new(serving),
            readers,
            metrics,
            histories: HeldHistories::new(history_bytes, is_shared),
            book: Arc::new(Book::open(records)),
            seal: Seal::new(config.secret.clone().unwrap_or_else(Secret::of_this_process)),
            latest: Arc::default(),
            systems: Systems::default(),
            work,
            pending: Pending::default(),
            arriving: Mutex::new(Some(arriving)),
        })
    }

    /// What a compaction item of a tenant stands for.
    ///
    /// # Errors
    /// If this server has not made it for this tenant.
    pub(crate) fn open(&self, tenant: &str, content: &str) -> Result<Compaction, ForeignItem> {
        self.seal.open(tenant, content)
    }

    /// Its bounds.
    ///
    /// # Errors
    /// If those of the server do not fit its context.
    fn settings(&self) -> Result<&MemorySettings, ApiError> {
        self.settings.as_ref().map_err(|error| {
            ApiError::field("kvik.memory", format!("`kvik.memory` cannot be on with this server: {error}"))
        })
    }

    /// Bytes of the histories that are held behind answers.
    #[cfg(test)]
    pub(crate) fn history_bytes(&self) -> u64 {
        self.histories.bytes()
    }

    /// The summaries to make, once.
    fn arriving(&self) -> Option<UnboundedReceiver<MemoryJob>> {
        self.arriving.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
