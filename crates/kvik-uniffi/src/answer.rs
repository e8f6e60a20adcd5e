//! An answer while it is made: batches of pieces, then a report.

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
    /// More of what the model thinks before it answers.
    Reasoning {
        /// Whole characters.
        text: String,
    },
    /// More of the answer.
    Text {
        /// Whole characters.
        text: String,
    },
    /// A whole call of a tool.
    Call {
        /// The call.
        call: ToolCall,
    },
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
#[non_exhaustive]
pub enum Finish {
    /// The model ended it.
    End,
    /// One of the texts to stop at came next.
    Stop,
    /// It has as many tokens as it may have.
    Length,
    /// It was cancelled. What was computed up to then is cached.
    Cancelled,
}

/// What an answer took.
#[derive(Debug, Clone, PartialEq, uniffi::Record)]
pub struct Report {
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the prompt.
    pub prompt_tokens: i64,
    /// Of these, tokens that came from the cache.
    pub cached_tokens: i64,
    /// Of these, tokens that came from disk.
    pub disk_tokens: i64,
    /// Tokens of the prompt that were computed.
    pub computed_tokens: i64,
    /// Tokens of the answer.
    pub generated_tokens: i64,
    /// Why no more of the prompt came from the cache; none where it was cancelled before that was known.
    pub reason: Option<Reason>,
    /// Time in the queue.
    pub queued: Duration,
    /// Time from there to the first token.
    pub prefill: Duration,
    /// Time from the first token to the last.
    pub decode: Duration,
    /// What was read of a conversation that is remembered beyond the context.
    pub memory: Option<MemoryRead>,
}

/// What a turn has read of its conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Record)]
pub struct MemoryRead {
    /// Messages in the summary.
    pub summarised_messages: i64,
    /// Messages in no summary, and not read.
    pub dropped_messages: i64,
    /// Messages read as they were said.
    pub recent_messages: i64,
    /// Passages that were quoted.
    pub quotes: i64,
    /// Whether a new summary is made behind the answer.
    pub rebuilding: bool,
    /// Whether the summary is read for the first time.
    pub rebuilt: bool,
}

/// An answer while it is made. Dropping it cancels it.
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
    /// Waits for the next piece, and returns it with all others that have arrived by then; nothing after the last one.
    pub fn next(&self) -> Result<Vec<Piece>, KvikError> {
        let pieces = self.lock().next_arrived()?;
        Ok(pieces.into_iter().map(Piece::from).collect())
    }

    /// Waits for the end, and returns all pieces that were not read before: one call for an answer that nobody watches.
    pub fn rest(&self) -> Result<Vec<Piece>, KvikError> {
        let mut answer = self.lock();
        let pieces = answer.by_ref().map(|piece| Ok(piece?.into()));
        pieces.collect()
    }

    /// Ends it at the next step of the model, from any thread. What has arrived by then can still be read, and then its
    /// report.
    pub fn cancel(&self) {
        self.canceller.cancel();
    }

    /// What it took; none before its last piece was read, or if it failed.
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
