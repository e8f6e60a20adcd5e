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
//!
//! What it runs on is a [`Host`]'s: a server's tasks, or threads of an application.

mod book;
mod compact;
mod compaction;
mod correct;
mod error;
mod held;
mod host;
mod identity;
mod job;
mod latest;
mod measure;
mod observer;
mod rebuild;
mod render;
mod report;
mod summary;
mod systems;
mod turn;
mod view;
mod words;
mod write_behind;

use std::sync::Arc;

use crate::context::{MemorySettings, MemorySettingsError};
use async_channel::{Receiver, Sender};

use crate::records::Records;
use book::Book;
use held::HeldHistories;
use job::MemoryJob;
use latest::Latest;
use measure::Measure;
use systems::Systems;

pub use book::{NotDeleted, Summary};
pub use compact::CompactJob;
pub use compaction::Compaction;
pub use correct::{CorrectionError, Remembered, chain_behind, forget_at_rest};
pub use error::MemoryError;
pub use host::{GoesOn, Host};
pub use job::Pending;
pub use measure::MemoryModel;
pub use observer::{Observer, ReadPart, SummaryOutcome};
pub use rebuild::make_summaries;
pub use render::{Purpose, Render};
pub use report::{MessagesRead, SummaryRead, TokensRead, TurnReport};
pub use turn::{ReadAnswer, RememberedTurn};
pub use view::History;
pub use words::{Wording, Words, WordsError};

/// How conversations are remembered.
#[derive(Debug, Clone, Default)]
pub struct MemoryConfig {
    /// For requests that do not say.
    pub on: bool,
    /// Tokens of recent messages that a summary leaves; scaled to the context where that is not said, as all bounds.
    pub recent_max: Option<usize>,
    /// Tokens of a summary at most.
    pub summary_max: Option<usize>,
    /// Tokens beyond the recent ones of which a new summary is made.
    pub trigger_discard: Option<usize>,
    /// Tokens of messages let go that are quoted at a question which they fit.
    pub quotes_max: Option<usize>,
    /// The opening exchange is never let go.
    pub protect_first: bool,
    /// Instead of those that are built in.
    pub words: Option<Words>,
}

impl MemoryConfig {
    /// The bounds for a context of so many tokens.
    ///
    /// # Errors
    /// If they do not fit it.
    pub fn settings(&self, context: usize) -> Result<MemorySettings, MemorySettingsError> {
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
    pub fn is_wanted(&self) -> bool {
        self.on || self.recent_max.or(self.summary_max).or(self.trigger_discard).is_some()
    }
}

/// What memory is made with.
pub struct Surroundings<'a> {
    /// The model that answers.
    pub model: Arc<dyn MemoryModel>,
    /// Its name, for words of its own.
    pub model_name: &'a str,
    /// Who counts.
    pub observer: Arc<dyn Observer>,
    /// Where summaries are written down; without, they last as long as the process.
    pub records: Option<&'a Records>,
    /// Bytes of histories that are held behind answers.
    pub history_bytes: u64,
    /// Whether several tenants share them.
    pub is_shared: bool,
}

/// What is remembered of conversations.
pub struct Memory<H: Host> {
    /// For requests that do not say.
    pub on: bool,
    settings: Result<MemorySettings, MemorySettingsError>,
    measure: Measure,
    observer: Arc<dyn Observer>,
    /// Room for the histories of turns that are being answered.
    histories: Arc<HeldHistories>,
    wording: Wording,
    book: Arc<Book>,
    systems: Systems,
    /// How conversations go on whose summaries are being made.
    latest: Arc<Latest>,
    /// Summaries to make.
    work: Sender<MemoryJob<H>>,
    /// What is to be done behind answers.
    pub pending: Pending,
    /// Where they arrive, for whoever makes them.
    arriving: Receiver<MemoryJob<H>>,
}

impl<H: Host> Memory<H> {
    /// With what was known when the records were closed.
    pub fn new(config: &MemoryConfig, around: Surroundings<'_>) -> Arc<Memory<H>> {
        let Surroundings { model, model_name, observer, records, history_bytes, is_shared } = around;
        let (work, arriving) = async_channel::unbounded();
        Arc::new(Memory {
            on: config.on,
            settings: config.settings(model.context()),
            wording: Wording::new(config.words.clone(), model_name),
            measure: Measure::new(model),
            observer,
            histories: HeldHistories::new(history_bytes, is_shared),
            book: Arc::new(Book::open(records)),
            latest: Arc::default(),
            systems: Systems::default(),
            work,
            pending: Pending::default(),
            arriving,
        })
    }

    /// Its bounds.
    fn settings(&self) -> Result<&MemorySettings, MemoryError> {
        self.settings.as_ref().map_err(|error| MemoryError::Settings(error.clone()))
    }

    /// Bytes of the histories that are held behind answers.
    pub fn history_bytes(&self) -> u64 {
        self.histories.bytes()
    }
}
