//! An answer while it is generated: batches of pieces, then a report.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvik_library::{Answer, Canceller, TurnReport};

use crate::error::{KvikError, signed};
use crate::kept::Reason;
use crate::prompt::ToolCall;

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq, uniffi::Enum)]
#[non_exhaustive]
pub enum Piece {
    /// More of the model's reasoning before the answer.
    Reasoning {
        /// Whole characters.
        text: String,
    },
    /// More of the answer.
    Text {
        /// Whole characters.
        text: String,
    },
    /// A complete tool call.
    Call {
        /// The call.
        call: ToolCall,
    },
}

/// Reason why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
#[non_exhaustive]
pub enum Finish {
    /// The model ended it.
    End,
    /// The next text would have been a stop text.
    Stop,
    /// The maximum number of tokens is reached.
    Length,
    /// The answer was cancelled. Blocks computed until then remain cached.
    Cancelled,
    /// The answer repeated itself, and the option `stop_loops` is set.
    Loop,
}

/// Cost of an answer.
#[derive(Debug, Clone, PartialEq, uniffi::Record)]
pub struct Report {
    /// Reason for its end.
    pub finish: Finish,
    /// Tokens of the prompt.
    pub prompt_tokens: i64,
    /// Prompt tokens that came from the cache, including those from disk.
    pub cached_tokens: i64,
    /// Cached tokens that came from disk.
    pub disk_tokens: i64,
    /// Prompt tokens that were computed.
    pub computed_tokens: i64,
    /// Tokens of the answer.
    pub generated_tokens: i64,
    /// Why no more of the prompt came from the cache; missing if the answer was cancelled before that was known.
    pub reason: Option<Reason>,
    /// Time in the queue.
    pub queued: Duration,
    /// Time from admission to the first token.
    pub prefill: Duration,
    /// Time from the first token to the last.
    pub decode: Duration,
    /// Parts of a conversation with memory that the answer has read.
    pub memory: Option<MemoryRead>,
}

/// Parts of a conversation that a turn has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Record)]
pub struct MemoryRead {
    /// Messages in the summary.
    pub summarised_messages: i64,
    /// Messages in no summary that were not read.
    pub dropped_messages: i64,
    /// Messages read verbatim.
    pub recent_messages: i64,
    /// Quoted passages of older messages.
    pub quotes: i64,
    /// True if a new summary is made after the answer.
    pub rebuilding: bool,
    /// True if the summary is read for the first time.
    pub rebuilt: bool,
}

/// An answer while it is generated. Dropping it cancels it.
#[derive(Debug, uniffi::Object)]
pub struct AnswerHandle {
    /// One thread reads at a time.
    answer: Mutex<Answer>,
    canceller: Canceller,
}

impl AnswerHandle {
    pub(crate) fn new(answer: Answer) -> Arc<AnswerHandle> {
        Arc::new(AnswerHandle { canceller: answer.canceller(), answer: Mutex::new(answer) })
    }

    fn lock(&self) -> MutexGuard<'_, Answer> {
        // An answer is whole between two pieces, and only reading one can panic.
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[uniffi::export]
impl AnswerHandle {
    /// Waits for the next piece, and returns it with all others that have arrived; an empty list after the last one.
    pub fn next(&self) -> Result<Vec<Piece>, KvikError> {
        let pieces = self.lock().next_arrived()?;
        Ok(pieces.into_iter().map(Piece::from).collect())
    }

    /// Waits for the end, and returns all pieces that were not read yet: one call for an answer that is not shown as it
    /// arrives.
    pub fn rest(&self) -> Result<Vec<Piece>, KvikError> {
        let mut answer = self.lock();
        let pieces = answer.by_ref().map(|piece| Ok(piece?.into()));
        pieces.collect()
    }

    /// Ends the answer at the next step of the model, from any thread. Pieces that have arrived, and the report, can still
    /// be read.
    pub fn cancel(&self) {
        self.canceller.cancel();
    }

    /// The report; missing before the last piece was read, and if the answer failed.
    pub fn report(&self) -> Option<Report> {
        self.lock().report().cloned().map(Report::from)
    }
}

impl From<kvik_library::Piece> for Piece {
    fn from(piece: kvik_library::Piece) -> Piece {
        match piece {
            kvik_library::Piece::Reasoning(text) => Piece::Reasoning { text },
            kvik_library::Piece::Call(call) => Piece::Call { call: call.into() },
            piece => Piece::Text { text: piece.text().to_owned() },
        }
    }
}

impl From<kvik_library::Report> for Report {
    fn from(report: kvik_library::Report) -> Report {
        let finish = match report.finish {
            kvik_library::Finish::Stop => Finish::Stop,
            kvik_library::Finish::Length => Finish::Length,
            kvik_library::Finish::Loop => Finish::Loop,
            kvik_library::Finish::Cancelled => Finish::Cancelled,
            _ => Finish::End,
        };
        Report {
            finish,
            prompt_tokens: signed(report.prompt_tokens),
            cached_tokens: signed(report.cached_tokens),
            disk_tokens: signed(report.disk_tokens),
            computed_tokens: signed(report.computed_tokens),
            generated_tokens: signed(report.generated_tokens),
            reason: report.reason.map(Reason::from),
            queued: report.queued,
            prefill: report.prefill,
            decode: report.decode,
            memory: report.memory.map(MemoryRead::from),
        }
    }
}

impl From<TurnReport> for MemoryRead {
    fn from(report: TurnReport) -> MemoryRead {
        MemoryRead {
            summarised_messages: signed(report.messages.summarised),
            dropped_messages: signed(report.messages.let_go),
            recent_messages: signed(report.messages.recent),
            quotes: signed(report.quotes.len()),
            rebuilding: report.rebuilding,
            rebuilt: report.rebuilt,
        }
    }
}
