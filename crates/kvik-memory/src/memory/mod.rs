//! Selection and summaries of long conversations, for clients that send the whole history.
//!
//! ```text
//! system messages + summary | recent messages            a turn: the part of its messages that the model reads
//!          ^                       |
//!          '---- book <---- rebuild '                    after the answer: a new summary, and the conversation
//!                                                        that continues after it, prefilled in advance
//! ```
//!
//! No turn waits for a summary: it reads one that is ready, and drops the beginning if none is.
//!
//! A [`Host`] executes the work: the tasks of a server, or the threads of an application.

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

pub use book::{NotDeleted, Summary, SummaryKind};
pub use compact::CompactJob;
pub use compaction::Compaction;
pub use correct::{CorrectionError, Preceding, Remembered, chain_after, chain_behind, forget_at_rest};
pub use error::MemoryError;
pub use host::{GoesOn, Host, Spoken};
pub use job::Pending;
pub use measure::MemoryModel;
pub use observer::{Observer, ReadPart, SummaryOutcome};
pub use rebuild::make_summaries;
pub use render::{ComputeTerms, Purpose, Render};
pub use report::{MessagesRead, SummaryRead, TokensRead, TurnReport};
pub use turn::{ReadAnswer, RegisteredWork, RememberedTurn};
pub use view::History;
pub use words::{Wording, Words, WordsError};

/// Configuration of memory.
#[derive(Debug, Clone, Default)]
pub struct MemoryConfig {
    /// Default for requests that do not specify it.
    pub on: bool,
    /// Tokens of recent messages that a new summary leaves. Like all bounds, it is scaled to the context if absent.
    pub recent_max: Option<usize>,
    /// Maximum tokens of a summary.
    pub summary_max: Option<usize>,
    /// Tokens beyond the recent ones at which a new summary of them is made.
    pub trigger_discard: Option<usize>,
    /// Maximum tokens of dropped messages that are quoted with a matching question; a quarter of the context at most.
    pub quotes_max: Option<usize>,
    /// True if the opening exchange is never dropped.
    pub protect_first: bool,
    /// Replacement for the built-in words.
    pub words: Option<Words>,
}

impl MemoryConfig {
    /// Bounds for a context of `context` tokens.
    ///
    /// # Errors
    /// If the bounds do not fit the context.
    pub fn settings(&self, context: usize) -> Result<MemorySettings, MemorySettingsError> {
        let scaled = MemorySettings::scaled_to(context);
        let settings = MemorySettings {
            recent_max: self.recent_max.unwrap_or(scaled.recent_max),
            summary_max: self.summary_max.unwrap_or(scaled.summary_max),
            trigger_discard: self.trigger_discard.unwrap_or(scaled.trigger_discard),
            quotes_max: self.quotes_max.unwrap_or(scaled.quotes_max),
            protect_first: self.protect_first,
        };
        settings.check(context).map(|()| settings.quoting_within(context))
    }

    /// True if any bound was configured, so that bounds that do not fit are a mistake.
    pub fn is_wanted(&self) -> bool {
        let bounds = [self.recent_max, self.summary_max, self.trigger_discard, self.quotes_max];
        self.on || bounds.iter().any(Option::is_some)
    }
}

/// Parameters of [`Memory::new`] besides the configuration.
pub struct Surroundings<'a> {
    /// Model that answers.
    pub model: Arc<dyn MemoryModel>,
    /// Name of the model, for words of its own.
    pub model_name: &'a str,
    /// Receiver of counts.
    pub observer: Arc<dyn Observer>,
    /// Where summaries are stored; without records, they last until the process ends.
    pub records: Option<&'a Records>,
    /// Maximum bytes of histories that are held after answers.
    pub history_bytes: u64,
    /// True if several tenants share that budget.
    pub is_shared: bool,
}

/// Memory of conversations.
pub struct Memory<H: Host> {
    /// Default for requests that do not specify it.
    pub on: bool,
    settings: Result<MemorySettings, MemorySettingsError>,
    measure: Measure,
    observer: Arc<dyn Observer>,
    /// Budget for the histories of turns that are being answered.
    histories: Arc<HeldHistories>,
    wording: Wording,
    book: Arc<Book>,
    systems: Systems,
    /// State of the conversations whose summaries are being made.
    latest: Arc<Latest>,
    /// Queue of work after answers.
    work: Sender<MemoryJob<H>>,
    /// Counter of the work after answers.
    pub pending: Pending,
    /// Receiving end of the queue, for [`make_summaries`].
    arriving: Receiver<MemoryJob<H>>,
}

impl<H: Host> Memory<H> {
    /// Creates the memory, with the stored summaries.
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

    /// The bounds.
    fn settings(&self) -> Result<&MemorySettings, MemoryError> {
        self.settings.as_ref().map_err(|error| MemoryError::Settings(error.clone()))
    }

    /// Bytes of the histories that are held after answers.
    pub fn history_bytes(&self) -> u64 {
        self.histories.bytes()
    }
}
