//! Generations as the HTTP side sees them: requests go to the engine, events come back.
//!
//! The engine's thread must never wait for a client, so the channel of events is unbounded. The events of one
//! request are bounded by its `max_tokens` or the context, those of all requests by the memory for answers.
//! Dropping a [`Generation`] closes the channel, which ends the work at the engine's next step: this is how a
//! closed connection cancels its request.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    body::Body,
    http::header,
    response::{IntoResponse, Response},
};
use kvik_engine::api::{Event, EventSink, FinishReason, Report, Request};
use kvik_memory::memory::Spoken;
use serde_json::Value;
use tokio::sync::{
    mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    watch,
};
use tokio_stream::Stream;

use super::{
    answer_memory::{AnswerMemory, bytes_of},
    conversations::{Writing, written},
    report::{trailer::Trailer, usage::Usage},
    running_answers::{AnswerFrames, Resumable},
    tally::Counts,
    usage_account::UsageAccount,
    wire::{Frame, KEEP_ALIVE, Wire},
};
use crate::{
    accounts::tenants::AdmissionPermit,
    http::{body_memory::charged, error::ApiError},
};
use kvik_serving::Inference;

/// Events of the prompts of one HTTP request, merged; each is tagged with the prompt's index.
pub(crate) struct Generation {
    events: UnboundedReceiver<(usize, Event)>,
    /// Events that were received but not yet returned.
    first: VecDeque<(usize, Event)>,
    /// Prompts that have not ended.
    running: usize,
    account: Arc<UsageAccount>,
    memory: Arc<AnswerMemory>,
    computed: AnswerComputed,
}

/// Signals that the engine has computed an answer. The rest is up to its client, which may read slowly but no
/// longer needs the model. Carried by the response.
#[derive(Debug, Clone)]
pub(crate) struct AnswerComputed(watch::Receiver<()>);

impl AnswerComputed {
    /// Waits until the answer is computed.
    pub(crate) async fn wait(mut self) {
        // Nothing is sent: the wait ends when the last sender is dropped.
        while self.0.changed().await.is_ok() {}
    }
}

/// The same of an answer that goes on without its client.
#[derive(Debug, Clone)]
pub(crate) struct AnswerGoesOn(AnswerComputed);

impl AnswerGoesOn {
    /// Waits until the answer has ended.
    pub(crate) async fn wait(self) {
        self.0.wait().await;
    }
}

/// How an answer is sent.
pub(crate) enum Delivery {
    Whole,
    Stream,
    /// A stream that goes on without its client.
    Resumable(Resumable),
}

/// The engine's end of the channel.
pub(super) struct Sink {
    pub(super) prompt: usize,
    pub(super) events: UnboundedSender<(usize, Event)>,
    pub(super) account: Arc<UsageAccount>,
    /// The slots of all prompts, freed when the last prompt has ended. They are freed before the client
    /// learns of the end, since it may send the next question before this sink is dropped.
    pub(super) permit: Option<Arc<AdmissionPermit>>,
    /// Held until the prompt has ended; absent for an answer that is a vector.
    pub(super) memory: Option<Arc<AnswerMemory>>,
    /// Whether a client waits for the first token, whose time is measured.
    pub(super) awaits_first: bool,
    /// Dropped when a prompt has ended; once the last one is, the answer is computed.
    pub(super) computing: Option<Arc<watch::Sender<()>>>,
}

impl EventSink for Sink {
    fn send(&mut self, event: Event) -> bool {
        let fits = self.memory.as_ref().is_none_or(|memory| memory.add(&event));
        self.count(&event, fits);
        let has_ended = matches!(event, Event::Done(_) | Event::Failed(_));
        if has_ended {
            self.permit = None;
        }
        let is_sent = fits && self.events.send((self.prompt, event)).is_ok();
        if has_ended {
            (self.computing, self.memory) = (None, None);
        }
        is_sent
    }

    fn given_up(&mut self, report: &Report) {
        self.account.charge(report);
    }

    fn is_closed(&self) -> bool {
        self.events.is_closed()
    }
}

impl Sink {
    /// Counts an event. One that does not fit in memory ends its answer with an error; the engine sends nothing after it.
    fn count(&mut self, event: &Event, fits: bool) {
        if let Event::Done(report) = event {
            self.account.charge(report);
        }
        match event {
            Event::Failed(_) => self.account.count(Counts::FAILED),
            _ if !fits => self.account.count(Counts::FAILED),
            Event::Done(report) => self.account.answered(report),
            // An answer that ends at once has no text.
            Event::Text { .. } | Event::Finished { .. } if self.awaits_first => {
                self.awaits_first = false;
                self.account.first_token();
            }
            _ => {}
        }
    }
}

impl Generation {
    /// Submits all requests, or none: a refusal drops the channel, which cancels the earlier ones.
    pub(super) fn start(
        engine: &dyn Inference,
        account: UsageAccount,
        permit: AdmissionPermit,
        memory: Arc<AnswerMemory>,
        requests: Vec<Request>,
    ) -> Result<Generation, ApiError> {
        let (sender, events) = unbounded_channel();
        let (computing, computed) = watch::channel(());
        // Only the sinks hold the permit: a client that does not read its answer takes no slot.
        let (account, permit, computing) = (Arc::new(account), Some(Arc::new(permit)), Arc::new(computing));
        let running = requests.len();
        for (prompt, request) in requests.into_iter().enumerate() {
            let (events, account, permit) = (sender.clone(), account.clone(), permit.clone());
            let (memory, computing) = (Some(memory.clone()), Some(computing.clone()));
            let awaits_first = request.max_tokens > 0 && request.background.is_none();
            let sink = Sink { prompt, events, account, permit, memory, awaits_first, computing };
            engine.submit(request, Box::new(sink))?;
        }
        let computed = AnswerComputed(computed);
        Ok(Generation { events, first: VecDeque::new(), running, account, memory, computed })
    }

    /// Waits briefly for the first event, so that a request that the engine fails at once is answered with a
    /// status code instead of a stream that breaks off.
    async fn settle(&mut self, patience: Duration) -> Result<(), ApiError> {
        let first = async {
            while let Some(event) = poll_fn(|cx| self.poll_new(cx)).await {
                let event = event?;
                // It comes before the engine has the request, which may still fail at once.
                let is_early = matches!(event, (_, Event::Unconstrained(_)));
                self.first.push_back(event);
                if !is_early {
                    break;
                }
            }
            Ok::<(), ApiError>(())
        };
        tokio::time::timeout(patience, first).await.unwrap_or(Ok(()))
    }

    /// Polls the next event, which stays counted until it is out of memory; `None` when every prompt has ended.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<(usize, Event), ApiError>>> {
        match self.first.pop_front() {
            Some(event) => Poll::Ready(Some(Ok(event))),
            None => self.poll_new(cx),
        }
    }

    /// Polls the next event that was not received yet.
    fn poll_new(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<(usize, Event), ApiError>>> {
        if self.running == 0 {
            return Poll::Ready(None);
        }
        let (prompt, event) = match ready!(self.events.poll_recv(cx)) {
            Some(event) => event,
            None => {
                self.running = 0;
                let stopped = || ApiError::internal("the engine has stopped");
                return Poll::Ready(Some(Err(self.memory.overrun().unwrap_or_else(stopped))));
            }
        };
        match event {
            Event::Failed(error) => {
                self.running = 0;
                Poll::Ready(Some(Err(error.into())))
            }
            event => {
                self.running -= usize::from(matches!(event, Event::Done(_)));
                Poll::Ready(Some(Ok((prompt, event))))
            }
        }
    }

    /// Waits for the next event, which the caller does not hold; `None` when every prompt has ended.
    async fn next_event(&mut self) -> Option<Result<(usize, Event), ApiError>> {
        let next = poll_fn(|cx| self.poll_event(cx)).await;
        if let Some(Ok((_, event))) = &next {
            self.memory.remove(bytes_of(event));
        }
        next
    }

    /// Lets the answer take an event, which stays counted while the answer holds it. Returns the frames for it.
    fn give<A: Answer>(
        &self,
        answer: &mut A,
        (prompt, event): (usize, Event),
        trailer: &Trailer,
        is_streamed: bool,
    ) -> Vec<Value> {
        let (bytes, mut frames) = (bytes_of(&event), Vec::new());
        answer.take(prompt, event, trailer, &mut frames);
        match answer.releases(bytes, is_streamed) {
            0 => {}
            released => self.memory.remove(released),
        }
        frames
    }

    /// Waits for the end of one prompt that generates no tokens. Returns its report and the answer's `usage`.
    /// Dropping the future cancels the request.
    pub(crate) async fn report(mut self) -> Result<(Report, Usage), ApiError> {
        while let Some(event) = self.next_event().await {
            if let (_, Event::Done(report)) = event? {
                let usage = Usage::of(&report, self.account.prices.as_ref());
                return Ok((report, usage));
            }
        }
        Err(ApiError::internal("the engine has stopped"))
    }

    /// Waits for the end of one prompt, and returns its first choice's text and its report. Dropping the
    /// future cancels the request.
    pub(crate) async fn text(mut self) -> Result<Spoken, ApiError> {
        let mut spoken = Spoken::default();
        while let Some(event) = self.next_event().await {
            match event? {
                (_, Event::Text { choice: 0, text, .. }) => spoken.text.push_str(&text),
                (_, Event::Finished { choice: 0, reason }) => spoken.is_cut = reason == FinishReason::Length,
                (_, Event::Done(report)) => spoken.report = report,
                _ => {}
            }
        }
        Ok(spoken)
    }

    /// Answers with one JSON object, or with a stream of them.
    pub(crate) async fn respond<A: Answer>(
        mut self,
        mut answer: A,
        mut trailer: Trailer,
        delivery: Delivery,
    ) -> Result<Response, ApiError> {
        match delivery {
            Delivery::Whole => {}
            Delivery::Stream => return self.respond_in_frames(answer, trailer).await,
            Delivery::Resumable(place) => return self.respond_resumably(answer, trailer, place),
        }
        while let Some(event) = poll_fn(|cx| self.poll_event(cx)).await {
            let (prompt, event) = event.inspect_err(|error| trailer.fail(error.code()))?;
            trailer.note(prompt, &event);
            self.give(&mut answer, (prompt, event), &trailer, false);
            trailer.compute_next(|| answer.message(), A::THOUGHTS_RETURN);
            if let Some(writing) = write(&answer, &mut trailer) {
                written(writing.await)?;
            }
        }
        let json = charged(answer.whole(&trailer), self.memory);
        Ok(([(header::CONTENT_TYPE, "application/json")], Body::from(json)).into_response())
    }

    async fn respond_in_frames<A: Answer>(
        mut self,
        answer: A,
        mut trailer: Trailer,
    ) -> Result<Response, ApiError> {
        self.settle(KEEP_ALIVE).await.inspect_err(|error| trailer.fail(error.code()))?;
        let computed = (!trailer.remembers()).then(|| self.computed.clone());
        let mut response = A::WIRE.respond(self.frames(answer, trailer));
        computed.map(|computed| response.extensions_mut().insert(computed));
        Ok(response)
    }

    /// Answers with a stream whose frames come also when its client has left. It begins at once: a client that leaves
    /// before the first event may come back for it.
    fn respond_resumably<A: Answer>(
        self,
        answer: A,
        trailer: Trailer,
        place: Resumable,
    ) -> Result<Response, ApiError> {
        let (running, ended) = place.begin(self.frames(answer, trailer));
        let mut response = A::WIRE.respond(running.follow(0)?);
        response.extensions_mut().insert(AnswerGoesOn(AnswerComputed(ended)));
        Ok(response)
    }

    /// The frames of a streamed answer.
    fn frames<A: Answer>(self, mut answer: A, trailer: Trailer) -> Frames<A> {
        let mut first = Vec::new();
        answer.start(&mut first);
        let ready = first.into_iter().map(Frame::Json).collect();
        Frames {
            generation: self,
            answer,
            trailer,
            ready,
            writing: None,
            has_begun_writing: false,
            ended: false,
        }
    }
}

/// The wording of a generation in one API.
///
/// Streams and whole answers come from the same `take`, so they cannot differ.
pub(crate) trait Answer: Send + Unpin + 'static {
    /// Begins a stream: adds the frames that it sends before the first event. [`whole`](Answer::whole) is not called
    /// then, so what only a whole answer has need not be kept.
    fn start(&mut self, _frames: &mut Vec<Value>) {}

    /// Bytes of its request that it repeats, in all objects that are in memory at a time: they count until its end.
    fn repeated_bytes(&self) -> u64 {
        0
    }

    /// Takes note of the requests as they are computed: answers in their prompts have the tokens that were generated.
    fn asks(&mut self, _requests: &[Request]) {}

    /// Takes one event of the prompt with this index, and adds the frames that a stream sends for it.
    /// `trailer` has already noted the event.
    fn take(&mut self, prompt: usize, event: Event, trailer: &Trailer, frames: &mut Vec<Value>);

    /// Of the bytes that are counted for the events it took, `last` for the last one, how many are out of memory now. All
    /// of a whole answer stay until its end, as does what later frames of a stream repeat.
    fn releases(&mut self, last: u64, is_streamed: bool) -> u64 {
        if is_streamed { last } else { 0 }
    }

    /// The answer as a message, if it is part of a conversation.
    fn message(&self) -> Option<Value> {
        None
    }

    /// The answer as it is stored, where clients may read it again.
    fn stored(&self, _trailer: &Trailer) -> Option<Value> {
        None
    }

    /// The whole answer as JSON, once every prompt has ended.
    fn whole(self, trailer: &Trailer) -> Vec<u8>;

    /// The last frame of a stream that fails; OpenAI's error object where the dialect has none of its own.
    fn failed(&self, error: &ApiError) -> Value {
        error.body()
    }

    /// Whether clients send the thoughts of an answer back with it, as their protocol has them do.
    const THOUGHTS_RETURN: bool = false;

    /// The wire format of a stream.
    const WIRE: Wire;
}

/// Starts writing the answer once all its prompts have ended: the client is told of the end after the write.
fn write(answer: &impl Answer, trailer: &mut Trailer) -> Option<Writing> {
    let unwritten = trailer.take_unwritten()?;
    let message = answer.message()?;
    Some(unwritten.write(message, answer.stored(trailer)))
}

/// The body of a streamed answer.
struct Frames<A> {
    generation: Generation,
    answer: A,
    trailer: Trailer,
    ready: VecDeque<Frame>,
    /// A write in progress; ready frames wait until it is done.
    writing: Option<Writing>,
    has_begun_writing: bool,
    ended: bool,
}

impl<A: Answer> Frames<A> {
    /// Ends the stream with an error and no trailer: a stream that failed must not look complete.
    fn fail(&mut self, error: &ApiError) {
        self.ended = true;
        self.trailer.fail(error.code());
        let error = self.trailer.scale().refusal(error.clone());
        self.ready = [Frame::Json(self.answer.failed(&error))].into();
    }
}

impl<A: Answer> AnswerFrames for Frames<A> {
    fn has_begun_writing(&self) -> bool {
        self.has_begun_writing
    }
}

impl<A: Answer> Stream for Frames<A> {
    type Item = Frame;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(writing) = &mut self.writing {
                let ended = ready!(Pin::new(writing).poll(cx));
                self.writing = None;
                written(ended).unwrap_or_else(|error| self.fail(&error));
            }
            if let Some(frame) = self.ready.pop_front() {
                return Poll::Ready(Some(frame));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            match ready!(self.generation.poll_event(cx)) {
                Some(Ok((prompt, event))) => {
                    let Frames { generation, answer, trailer, .. } = &mut *self;
                    trailer.note(prompt, &event);
                    let frames = generation.give(answer, (prompt, event), trailer, true);
                    trailer.compute_next(|| answer.message(), A::THOUGHTS_RETURN);
                    let writing = write(answer, trailer);
                    self.ready.extend(frames.into_iter().map(Frame::Json));
                    self.has_begun_writing |= writing.is_some();
                    self.writing = writing;
                }
                Some(Err(error)) => self.fail(&error),
                None => {
                    self.ended = true;
                    self.ready.extend(A::WIRE.end());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use axum::http::HeaderMap;
    use kvik_cache::TenantId;
    use kvik_engine::api::RequestError;

    use super::*;
    use crate::{
        accounts::ledger::Ledger,
        app::{keys::Keys, metrics::Metrics, tally::Tally},
        http::body_memory::{BodyMemory, SMALL_BYTES},
    };

    const BODY_BYTES: u64 = 1 << 20;
    const MINE: TenantId = TenantId(1);
    const OTHER: TenantId = TenantId(2);

    fn account() -> UsageAccount {
        UsageAccount {
            tenant: Keys::new([]).caller(&HeaderMap::new()).expect("no key is needed").tenant,
            model: "tiny".to_owned(),
            prices: None,
            metrics: Arc::new(Metrics::new()),
            tally: Arc::new(Tally::new()),
            ledger: Arc::new(Ledger::new(None, || SystemTime::UNIX_EPOCH)),
            clock: Arc::new(|| Duration::ZERO),
            arrived: Duration::ZERO,
        }
    }

    fn text() -> Event {
        Event::Text { choice: 0, text: "x".to_owned(), tokens: Vec::new() }
    }

    #[test]
    fn an_answer_that_memory_cuts_off_has_failed_once() {
        let done = || Event::Done(Report::default());
        let failed = || Event::Failed(RequestError::Internal("for the test".to_owned()));
        // Whether others hold all memory, the last event, and the answers and failures that are counted.
        for (is_full, last, expect) in [
            (false, done(), (1, 0)),
            (false, failed(), (0, 1)),
            (true, text(), (0, 1)),
            (true, done(), (0, 1)),
            (true, failed(), (0, 1)),
        ] {
            let told = format!("{is_full}: {last:?}");
            let bodies = BodyMemory::new(BODY_BYTES, false);
            let _others = is_full.then(|| bodies.hold(OTHER, 2 * BODY_BYTES + SMALL_BYTES));
            let memory = AnswerMemory::of(&bodies, MINE, &[Request::new(vec![1], 8)], 0).unwrap();
            while is_full && memory.add(&text()) {}
            let ((events, _unread), account) = (unbounded_channel(), Arc::new(account()));
            let mut sink = Sink {
                prompt: 0,
                events,
                account: account.clone(),
                permit: None,
                memory: Some(memory),
                awaits_first: true,
                computing: None,
            };
            assert_eq!(sink.send(last), !is_full, "{told}");
            let counts = account.tally.of(None);
            assert_eq!((counts.answered, counts.failed), expect, "{told}");
        }
    }
}
