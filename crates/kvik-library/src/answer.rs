//! An answer while it is generated: pieces, then a report. Dropping it cancels it.
//!
//! The engine's thread puts events into an unbounded channel and never waits for the reader; an answer has at most
//! `max_tokens` of them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_channel::{Receiver, Sender, unbounded};
use kvik_cache::StopReason;
use kvik_cache::tier::Level;
use kvik_engine::api::{self, Event, EventSink, FinishReason, RequestError};
use kvik_memory::memory::{Spoken, TurnReport};
use kvik_memory::random::random;
use kvik_text::answer::{AnswerDelta, Reader, Reading};

use crate::error::{Error, guard};
use crate::message::{Message, ToolCall};
use crate::next_turn::NextTurn;

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Piece {
    /// More of the model's reasoning before the answer.
    Reasoning(String),
    /// More of the answer, in whole characters.
    Text(String),
    /// A complete tool call.
    Call(ToolCall),
}

/// Reason why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finish {
    /// The model ended it.
    End,
    /// The next text would have been a stop text.
    Stop,
    /// The maximum number of tokens is reached.
    Length,
    /// The answer repeated itself, and [`stop_loops`](crate::AnswerOptions::stop_loops) is set.
    Loop,
    /// The answer was cancelled. The KV cache computed until then remains cached.
    Cancelled,
}

/// Cost of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Reason for its end.
    pub finish: Finish,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens that came from the cache, including those from disk.
    pub cached_tokens: usize,
    /// Cached tokens that came from disk.
    pub disk_tokens: usize,
    /// Prompt tokens that are those of an earlier answer as it was generated, where the tokenizer would have chosen others.
    pub retokenised: usize,
    /// Prompt tokens that were computed.
    pub computed_tokens: usize,
    /// Tokens of the answer.
    pub generated_tokens: usize,
    /// Reason why no more of the prompt came from the cache; `None` if the request was cancelled before that was known.
    pub reason: Option<StopReason>,
    /// Time in the queue.
    pub queued: Duration,
    /// Time from the queue to the first token.
    pub prefill: Duration,
    /// Time from the first token to the last.
    pub decode: Duration,
    /// Report of what a turn read of its conversation, if the conversation is remembered beyond the context.
    pub memory: Option<TurnReport>,
}

/// An answer while it is generated: an iterator over its pieces. After the last piece, [`report`](Answer::report) is
/// available.
///
/// Dropping it cancels the answer.
pub struct Answer {
    news: Receiver<News>,
    canceller: Canceller,
    /// Separates reasoning, text and calls.
    reader: Reader,
    /// A call whose arguments may be incomplete.
    calling: Option<ToolCall>,
    /// Called with the message of the answer, without its reasoning, before the end is reported.
    follow: Option<(Follow, Message)>,
    /// Pieces that have arrived together.
    ready: VecDeque<Piece>,
    finish: Option<Finish>,
    /// Cost of an answer that is generated, while pieces of it are unread: its end belongs to the call that reports it.
    generated: Option<api::Report>,
    report: Option<Report>,
    /// True if the end has been reported.
    ended: bool,
    /// Cause of the failure, until it is read.
    failure: Option<Error>,
}

/// Action on the message of an answer that was not cancelled, before its end is reported.
pub(crate) struct Follow {
    /// Stores the message; returns the report of a remembered conversation.
    pub(crate) write: Box<dyn FnOnce(Message) -> Result<Option<TurnReport>, Error> + Send>,
    /// The turn after it.
    pub(crate) next: NextTurn,
}

impl Follow {
    fn end(self, message: Message) -> Result<Option<TurnReport>, Error> {
        let Follow { write, next } = self;
        let answer = message.json();
        let report = write(message)?;
        next.compute(answer);
        Ok(report)
    }
}

/// Cancels an answer, from any thread, any number of times.
#[derive(Debug, Clone)]
pub struct Canceller(Arc<AtomicBool>);

/// Messages of the engine's thread about a request.
enum News {
    Event(Event),
    /// The request was cancelled; with the cost until then.
    GivenUp(api::Report),
}

impl Canceller {
    /// Ends the answer at the next step of the model.
    pub fn cancel(&self) {
        // Relaxed, because it orders no other memory: the engine reads the flag before each step.
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn watch(&self) -> Weak<AtomicBool> {
        Arc::downgrade(&self.0)
    }

    fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Answer {
    /// Creates an answer for a request that is about to be submitted, and the sink of its events.
    pub(crate) fn new(reading: &Reading, follow: Option<Follow>) -> (Answer, Box<dyn EventSink>) {
        let (sender, news) = unbounded();
        let canceller = Canceller(Arc::default());
        let sink = Sink { sender, cancelled: canceller.0.clone() };
        let answer = Answer {
            news,
            canceller,
            // Calls of different answers have different ids, because results refer to the ids.
            reader: reading.reader(&format!("{:016x}", random())),
            calling: None,
            follow: follow.map(|follow| (follow, Message::assistant(""))),
            ready: VecDeque::new(),
            finish: None,
            generated: None,
            report: None,
            ended: false,
            failure: None,
        };
        (answer, Box::new(sink))
    }

    /// A handle that cancels it, for other threads.
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }

    /// Ends it at the next step of the model. Pieces that have arrived by then can still be read, and then its report.
    pub fn cancel(&self) {
        self.canceller.cancel();
    }

    /// Cost of the answer; `None` until the last piece was read, or if it failed.
    pub fn report(&self) -> Option<&Report> {
        self.report.as_ref()
    }

    /// Waits for the next piece, and returns it with all others that have arrived by then; empty after the last one, and
    /// only that call ends the answer. For readers for whom each call is expensive.
    ///
    /// # Errors
    /// If the answer fails; the pieces before the failure are returned first.
    pub fn next_arrived(&mut self) -> Result<Vec<Piece>, Error> {
        let mut pieces: Vec<Piece> = self.next().transpose()?.into_iter().collect();
        while !self.is_generated()
            && let Ok(news) = self.news.try_recv()
        {
            self.accept(news);
        }
        pieces.extend(self.ready.drain(..));
        Ok(pieces)
    }

    /// Reads the answer to its end; returns its text without reasoning, and its cost.
    ///
    /// # Errors
    /// If the answer fails.
    pub fn finish(mut self) -> Result<(String, Report), Error> {
        let mut text = String::new();
        for piece in &mut self {
            if let Piece::Text(more) = piece? {
                text += &more;
            }
        }
        let report = self.report.take().expect("an answer that has not failed ends with its report");
        Ok((text, report))
    }

    /// Reads all of the model's text and its cost, without blocking the thread.
    pub(crate) async fn whole(self) -> Result<Spoken, Error> {
        let mut spoken = Spoken::default();
        loop {
            match self.news.recv().await.map_err(|_| Error::from(RequestError::Stopping))? {
                News::Event(Event::Text { text, .. }) => spoken.text += &text,
                News::Event(Event::Finished { reason, .. }) => spoken.is_cut = reason == FinishReason::Length,
                News::Event(Event::Done(report)) => return Ok(Spoken { report, ..spoken }),
                News::Event(Event::Failed(error)) => return Err(error.into()),
                News::Event(Event::Unconstrained(_) | Event::Prefill { .. } | Event::Vector(_)) => {}
                News::GivenUp(_) => return Err(RequestError::Stopping.into()),
            }
        }
    }

    /// Processes one event of the engine; a failure ends the answer.
    fn accept(&mut self, news: News) {
        if let Err(error) = guard(|| self.take(news)) {
            self.fail(error);
        }
    }

    fn fail(&mut self, error: Error) {
        // The conversation is free from here on, however long the answer is held.
        self.follow = None;
        self.ended = true;
        self.failure = Some(error);
    }

    /// True if no more pieces come.
    fn is_generated(&self) -> bool {
        self.ended || self.generated.is_some()
    }

    fn take(&mut self, news: News) -> Result<(), Error> {
        if let (Some((follow, _)), News::Event(event)) = (&mut self.follow, &news) {
            follow.next.note(event);
        }
        match news {
            News::Event(Event::Text { text, .. }) => self.push(&text),
            News::Event(Event::Finished { reason, .. }) => self.finish = Some(reason.into()),
            News::Event(Event::Done(report)) => {
                self.complete();
                self.generated = Some(report);
            }
            News::Event(Event::Failed(error)) => return Err(error.into()),
            News::Event(Event::Unconstrained(_)) => self.reader.unconstrain(),
            News::Event(Event::Prefill { .. } | Event::Vector(_)) => {}
            News::GivenUp(report) => {
                self.complete();
                self.follow = None;
                self.end(Finish::Cancelled, &report, None);
            }
        }
        Ok(())
    }

    /// Ends an answer whose pieces were read. One that was cancelled before that leaves no trace.
    fn conclude(&mut self, report: &api::Report) -> Result<(), Error> {
        let follow = self.follow.take();
        if self.canceller.is_cancelled() {
            self.end(Finish::Cancelled, report, None);
            return Ok(());
        }
        let memory = follow.map_or(Ok(None), |(follow, message)| follow.end(message))?;
        self.end(self.finish.unwrap_or(Finish::Length), report, memory);
        Ok(())
    }

    /// Waits for news, or ends an answer that has all of them.
    fn advance(&mut self) {
        if let Some(report) = self.generated.take() {
            if let Err(error) = guard(|| self.conclude(&report)) {
                self.fail(error);
            }
            return;
        }
        match self.news.recv_blocking() {
            Ok(news) => self.accept(news),
            // A sink is dropped without an event if the engine stopped before it received the request.
            Err(_) => self.fail(RequestError::Stopping.into()),
        }
    }

    fn push(&mut self, text: &str) {
        let deltas = self.reader.push(text);
        self.add(deltas);
    }

    /// Emits the text that the reader held back, now that no more follows.
    fn complete(&mut self) {
        let deltas = self.reader.finish();
        self.add(deltas);
        self.called();
    }

    fn end(&mut self, finish: Finish, report: &api::Report, memory: Option<TurnReport>) {
        self.report = Some(Report { memory, ..Report::new(finish, report) });
        self.ended = true;
    }

    fn add(&mut self, deltas: Vec<AnswerDelta>) {
        for delta in deltas {
            match delta {
                AnswerDelta::Arguments { text, .. } => {
                    self.calling.iter_mut().for_each(|call| call.arguments.push_str(&text));
                }
                AnswerDelta::ToolCall { id, name, arguments, .. } => {
                    self.called();
                    self.calling = Some(ToolCall { id, name, arguments });
                }
                AnswerDelta::Reasoning(text) => self.said(Piece::Reasoning(text)),
                AnswerDelta::Content(text) => self.said(Piece::Text(text)),
            }
        }
    }

    fn said(&mut self, piece: Piece) {
        self.called();
        if piece.text().is_empty() {
            return;
        }
        if let (Piece::Text(text), Some((_, message))) = (&piece, &mut self.follow) {
            message.content += text;
        }
        self.ready.push_back(piece);
    }

    /// Emits the last call, whose arguments are complete.
    fn called(&mut self) {
        let Some(call) = self.calling.take() else { return };
        if let Some((_, message)) = &mut self.follow {
            message.tool_calls.push(call.clone());
        }
        self.ready.push_back(Piece::Call(call));
    }
}

impl Iterator for Answer {
    type Item = Result<Piece, Error>;

    /// Waits for the next piece.
    fn next(&mut self) -> Option<Result<Piece, Error>> {
        while self.ready.is_empty() {
            if self.ended {
                return self.failure.take().map(Err);
            }
            self.advance();
        }
        self.ready.pop_front().map(Ok)
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl Piece {
    /// Text of a piece of any kind; empty for a call.
    pub fn text(&self) -> &str {
        match self {
            Piece::Reasoning(text) | Piece::Text(text) => text,
            Piece::Call(_) => "",
        }
    }
}

impl From<FinishReason> for Finish {
    fn from(reason: FinishReason) -> Finish {
        match reason {
            FinishReason::Eos | FinishReason::ConstraintDone => Finish::End,
            FinishReason::StopString(_) => Finish::Stop,
            FinishReason::Length => Finish::Length,
            FinishReason::Loop(_) => Finish::Loop,
        }
    }
}

impl Report {
    fn new(finish: Finish, report: &api::Report) -> Report {
        Report {
            finish,
            prompt_tokens: report.prompt_tokens,
            cached_tokens: report.cached_tokens,
            disk_tokens: report.loaded[Level::Disk],
            retokenised: report.retokenised,
            computed_tokens: report.computed_tokens,
            generated_tokens: report.generated_tokens,
            reason: report.cache,
            queued: report.queued,
            prefill: report.prefill,
            decode: report.decode,
            memory: None,
        }
    }
}

/// The sink of the engine's events.
struct Sink {
    sender: Sender<News>,
    cancelled: Arc<AtomicBool>,
}

impl EventSink for Sink {
    fn send(&mut self, event: Event) -> bool {
        self.sender.try_send(News::Event(event)).is_ok()
    }

    fn given_up(&mut self, report: &api::Report) {
        // The receiver is gone if the answer was dropped.
        let _ = self.sender.try_send(News::GivenUp(report.clone()));
    }

    fn is_closed(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answer")
            .field("ready", &self.ready)
            .field("report", &self.report)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for News {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            News::Event(event) => event.fmt(f),
            News::GivenUp(_) => f.write_str("GivenUp"),
        }
    }
}

#[cfg(test)]
mod tests {
    use kvik_text::answer::{AnswerStart, Offer, ToolForm};
    use serde_json::json;

    use super::*;

    fn text(text: &str) -> Event {
        Event::Text { choice: 0, text: text.to_owned(), tokens: Vec::new() }
    }

    #[test]
    fn pieces_come_in_order_and_then_the_report() {
        let (mut answer, mut sink) = Answer::new(&Reading::Plain, None);
        for event in [text("one"), text(""), text(" two")] {
            assert!(sink.send(event));
        }
        sink.send(Event::Finished { choice: 0, reason: FinishReason::Eos });
        sink.send(Event::Done(api::Report { prompt_tokens: 7, ..api::Report::default() }));
        let pieces: Vec<Piece> = answer.by_ref().map(|piece| piece.unwrap()).collect();
        assert_eq!(pieces, [Piece::Text("one".into()), Piece::Text(" two".into())]);
        let report = answer.report().unwrap();
        assert_eq!((report.finish, report.prompt_tokens), (Finish::End, 7));
        assert!(answer.next().is_none(), "it stays at its end");
    }

    #[test]
    fn what_has_arrived_before_a_failure_is_read_before_it() {
        let (mut answer, mut sink) = Answer::new(&Reading::Plain, None);
        sink.send(text("one"));
        sink.send(Event::Failed(RequestError::Internal("it broke".into())));
        assert_eq!(answer.next().unwrap().unwrap(), Piece::Text("one".into()));
        let error = answer.next().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "internal error: it broke");
        assert!(answer.next().is_none() && answer.report().is_none());
    }

    #[test]
    fn a_batch_is_what_has_arrived() {
        let (mut answer, mut sink) = Answer::new(&Reading::Plain, None);
        let batch = |answer: &mut Answer| -> Vec<String> {
            answer.next_arrived().unwrap().iter().map(|piece| piece.text().to_owned()).collect()
        };
        for event in [text("one"), text(" two"), text("")] {
            sink.send(event);
        }
        assert_eq!(batch(&mut answer), ["one", " two"]);
        sink.send(text("three"));
        sink.send(Event::Failed(RequestError::Internal("it broke".into())));
        assert_eq!(batch(&mut answer), ["three"], "what has arrived comes before the failure");
        assert_eq!(answer.next_arrived().unwrap_err().to_string(), "internal error: it broke");
        assert!(batch(&mut answer).is_empty(), "it stays at its end");
    }

    #[test]
    fn an_answer_that_is_cancelled_before_its_end_was_read_ends_as_cancelled() {
        for cancels in [false, true] {
            let (mut answer, mut sink) = Answer::new(&Reading::Plain, None);
            sink.send(text("one"));
            sink.send(Event::Finished { choice: 0, reason: FinishReason::Eos });
            sink.send(Event::Done(api::Report { generated_tokens: 1, ..api::Report::default() }));
            assert_eq!(answer.next_arrived().unwrap().len(), 1);
            assert_eq!(answer.report(), None, "its end was not read");
            if cancels {
                answer.cancel();
            }
            assert!(answer.next_arrived().unwrap().is_empty());
            let expect = if cancels { Finish::Cancelled } else { Finish::End };
            let report = answer.report().unwrap();
            assert_eq!((report.finish, report.generated_tokens), (expect, 1));
        }
    }

    /// A constraint that cannot be compiled holds no text to the form of calls.
    #[test]
    fn an_unconstrained_answer_loses_no_text() {
        let said = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 'a'}}\n</tool_call>\nI cannot.";
        let tools = vec![("f".to_owned(), json!({"type": "object"}))];
        let offer = Offer { form: ToolForm::tagged(), tools, calls_max: 1, certain: true };
        let reading = Reading::Tagged { start: AnswerStart::usual(false), offer: Some(Arc::new(offer)) };
        let (answer, mut sink) = Answer::new(&reading, None);
        sink.send(Event::Unconstrained(api::ConstraintError::NoGrammars));
        said.split_inclusive(' ').for_each(|piece| assert!(sink.send(text(piece))));
        sink.send(Event::Finished { choice: 0, reason: FinishReason::Eos });
        sink.send(Event::Done(api::Report::default()));
        let pieces: Vec<Piece> = answer.map(|piece| piece.unwrap()).collect();
        assert!(pieces.iter().all(|piece| matches!(piece, Piece::Text(_))), "{pieces:?}");
        assert_eq!(pieces.iter().map(Piece::text).collect::<String>(), said);
    }

    #[test]
    fn an_engine_that_stops_without_a_word_ends_the_answer() {
        let (mut answer, sink) = Answer::new(&Reading::Plain, None);
        drop(sink);
        let error = answer.next().unwrap().unwrap_err();
        assert!(matches!(error, Error::Request(RequestError::Stopping)), "{error}");
        assert!(answer.next().is_none());
    }

    #[test]
    fn dropping_or_cancelling_closes_the_sink() {
        let (answer, sink) = Answer::new(&Reading::Plain, None);
        assert!(!sink.is_closed());
        drop(answer);
        assert!(sink.is_closed());
        let (answer, mut sink) = Answer::new(&Reading::Plain, None);
        answer.canceller().cancel();
        assert!(sink.is_closed());
        sink.given_up(&api::Report { generated_tokens: 3, ..api::Report::default() });
        let (text, report) = answer.finish().unwrap();
        assert_eq!((text.as_str(), report.finish, report.generated_tokens), ("", Finish::Cancelled, 3));
    }
}
