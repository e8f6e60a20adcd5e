//! An answer while it is made: pieces, then a report. Dropping it cancels it.
//!
//! The engine's thread puts events into a channel and never waits for who reads them; an answer has at most `max_tokens`
//! of them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_channel::{Receiver, Sender, unbounded};
use kvik_cache::StopReason;
use kvik_engine::api::{self, Event, EventSink, FinishReason, RequestError};
use kvik_memory::memory::TurnReport;
use kvik_memory::random::random;
use kvik_text::answer::{AnswerDelta, Reader, Reading};

use crate::error::{Error, guard};
use crate::message::{Message, ToolCall};

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Piece {
    /// More of what the model thinks before it answers.
    Reasoning(String),
    /// More of the answer; whole characters.
    Text(String),
    /// A whole call of a tool.
    Call(ToolCall),
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, tokens that came from the cache.
    pub cached_tokens: usize,
    /// Of these, tokens that came from disk.
    pub disk_tokens: usize,
    /// Tokens of the prompt that were computed.
    pub computed_tokens: usize,
    /// Tokens of the answer.
    pub generated_tokens: usize,
    /// Why no more of the prompt came from the cache; none where it was cancelled before that was known.
    pub reason: Option<StopReason>,
    /// Time in the queue.
    pub queued: Duration,
    /// Time from there to the first token.
    pub prefill: Duration,
    /// Time from the first token to the last.
    pub decode: Duration,
    /// What was read of a conversation that is remembered beyond the context.
    pub memory: Option<TurnReport>,
}

/// An answer while it is made: an iterator over its pieces. After the last one [`report`](Answer::report) is there.
///
/// Dropping it cancels it.
pub struct Answer {
    news: Receiver<News>,
    canceller: Canceller,
    /// Tells reasoning, text and calls apart.
    reader: Reader,
    /// A call that more arguments may follow.
    calling: Option<ToolCall>,
    /// What is done with its message before its end is said, and what that has come to, without its thoughts.
    follow: Option<(Follow, Message)>,
    /// Pieces that have arrived together.
    ready: VecDeque<Piece>,
    finish: Option<Finish>,
    report: Option<Report>,
    /// Whether its end has been said.
    ended: bool,
    /// Why it failed, until that is read.
    failure: Option<Error>,
}

/// What is done with the message that an answer has come to, when it has ended by itself and before that is said; what was
/// read of its conversation, if that is remembered.
pub(crate) type Follow = Box<dyn FnOnce(Message) -> Result<Option<TurnReport>, Error> + Send>;

/// Cancels an answer, from any thread, any number of times.
#[derive(Debug, Clone)]
pub struct Canceller(Arc<AtomicBool>);

/// What the engine's thread says of a request.
enum News {
    Event(Event),
    /// It was cancelled, after this much.
    GivenUp(Box<api::Report>),
}

impl Canceller {
    /// Ends the answer at the next step of the model.
    pub fn cancel(&self) {
        // It orders nothing else: the engine reads it before each step.
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn watch(&self) -> Weak<AtomicBool> {
        Arc::downgrade(&self.0)
    }
}

impl Answer {
    /// An answer that is about to be asked for, and where its events go.
    pub(crate) fn new(reading: &Reading, follow: Option<Follow>) -> (Answer, Box<dyn EventSink>) {
        let (sender, news) = unbounded();
        let canceller = Canceller(Arc::default());
        let sink = Sink { sender, cancelled: canceller.0.clone() };
        let answer = Answer {
            news,
            canceller,
            // Calls of different answers have different ids: their results name them.
            reader: reading.reader(&format!("{:016x}", random())),
            calling: None,
            follow: follow.map(|follow| (follow, Message::assistant(""))),
            ready: VecDeque::new(),
            finish: None,
            report: None,
            ended: false,
            failure: None,
        };
        (answer, Box::new(sink))
    }

    /// What cancels it, for other threads.
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }

    /// Ends it at the next step of the model. What has arrived by then can still be read, and then its report.
    pub fn cancel(&self) {
        self.canceller.cancel();
    }

    /// What it took; none before its last piece was read, or if it failed.
    pub fn report(&self) -> Option<&Report> {
        self.report.as_ref()
    }

    /// Waits for the next piece, and returns it with all others that have arrived by then; none after the last one. For
    /// readers to whom each call is dear.
    ///
    /// # Errors
    /// If it fails; what has arrived before that is returned first.
    pub fn next_arrived(&mut self) -> Result<Vec<Piece>, Error> {
        let mut pieces: Vec<Piece> = self.next().transpose()?.into_iter().collect();
        while !self.ended
            && let Ok(news) = self.news.try_recv()
        {
            self.accept(news);
        }
        pieces.extend(self.ready.drain(..));
        Ok(pieces)
    }

    /// Reads it to its end: its text without reasoning, and what it took.
    ///
    /// # Errors
    /// If it fails.
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

    /// Reads all that the model writes, and what that has cost, without holding the thread up.
    pub(crate) async fn whole(self) -> Result<(String, api::Report), Error> {
        let mut whole = String::new();
        loop {
            match self.news.recv().await.map_err(|_| Error::from(RequestError::Stopping))? {
                News::Event(Event::Text { text, .. }) => whole += &text,
                News::Event(Event::Done(report)) => return Ok((whole, report)),
                News::Event(Event::Failed(error)) => return Err(error.into()),
                News::Event(Event::Finished { .. } | Event::Prefill { .. } | Event::Vector(_)) => {}
                News::GivenUp(_) => return Err(RequestError::Stopping.into()),
            }
        }
    }

    /// Takes one event of the engine in; its failure ends the answer.
    fn accept(&mut self, news: News) {
        if let Err(error) = guard(|| self.take(news)) {
            self.fail(error);
        }
    }

    fn fail(&mut self, error: Error) {
        self.ended = true;
        self.failure = Some(error);
    }

    fn take(&mut self, news: News) -> Result<(), Error> {
        match news {
            News::Event(Event::Text { text, .. }) => self.push(&text),
            News::Event(Event::Finished { reason, .. }) => self.finish = Some(reason.into()),
            News::Event(Event::Done(report)) => {
                self.complete();
                let follow = self.follow.take();
                let memory = follow.map_or(Ok(None), |(follow, message)| follow(message))?;
                self.end(self.finish.unwrap_or(Finish::Length), &report, memory);
            }
            News::Event(Event::Failed(error)) => return Err(error.into()),
            News::Event(Event::Prefill { .. } | Event::Vector(_)) => {}
            News::GivenUp(report) => {
                self.complete();
                self.end(Finish::Cancelled, &report, None);
            }
        }
        Ok(())
    }

    fn push(&mut self, text: &str) {
        let deltas = self.reader.push(text);
        self.add(deltas);
    }

    /// What was held back, now that no more text comes.
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

    /// No more arguments follow the last call.
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
            match self.news.recv_blocking() {
                Ok(news) => self.accept(news),
                // A request whose sink is dropped without a word was on its way while the engine stopped.
                Err(_) => self.fail(RequestError::Stopping.into()),
            }
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
    /// Its text, whatever it is; a call has none.
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
        }
    }
}

impl Report {
    fn new(finish: Finish, report: &api::Report) -> Report {
        Report {
            finish,
            prompt_tokens: report.prompt_tokens,
            cached_tokens: report.cached_tokens,
            disk_tokens: report.disk_tokens,
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

/// Where the engine's thread leaves events.
struct Sink {
    sender: Sender<News>,
    cancelled: Arc<AtomicBool>,
}

impl EventSink for Sink {
    fn send(&mut self, event: Event) -> bool {
        self.sender.try_send(News::Event(event)).is_ok()
    }

    fn given_up(&mut self, report: &api::Report) {
        // Who dropped the answer does not read this.
        let _ = self.sender.try_send(News::GivenUp(Box::new(report.clone())));
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
