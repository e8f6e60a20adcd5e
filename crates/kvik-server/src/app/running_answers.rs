//! Answers of stored conversations that go on without their client, which may come back for the rest.
//!
//! ```text
//! engine ──► frames ──► task ──► buffer ──► the client that asked
//!                                   '─────► clients that come later, from an event on
//! ```
//!
//! The task reads an answer as fast as it comes: no client holds it up, and none ends it by leaving. A buffer is
//! bounded, is found by the conversation's tenant only, and outlives its answer by a moment, for a client that comes
//! back just then.

use std::{
    collections::{BTreeMap, VecDeque},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use axum::http::StatusCode;
use kvik_cache::TenantId;
use kvik_memory::conversations::ConversationKey;
use serde_json::Value;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};

use super::wire::Frame;
use crate::http::{
    body_memory::{BodyMemory, BodyShare, SMALL_BYTES},
    error::ApiError,
    json::bytes_taken,
};

/// Maximum bytes of the buffered frames of one answer; the oldest frames are dropped beyond them.
const BYTES_MAX: u64 = 4 << 20;
/// How long a complete answer can be read again.
const LIFE: Duration = Duration::from_secs(30);
/// Maximum number of clients that follow one answer: the connection of each may hold some hundred KiB of it unread.
const FOLLOWERS_MAX: usize = 16;
/// Seconds after which a client that was one too many should retry.
const RETRY_AFTER_S: u64 = 1;

/// The answers that run or ended a moment ago, by their conversations.
#[derive(Default)]
pub(crate) struct RunningAnswers(Mutex<BTreeMap<ConversationKey, Arc<RunningAnswer>>>);

/// The new messages of a conversation's turn whose answer may be resumed.
pub(crate) struct ResumableTurn {
    pub(crate) key: ConversationKey,
    pub(crate) messages: Vec<Value>,
    /// Messages of the conversation once it is answered.
    pub(crate) messages_after: usize,
}

/// A place for an answer that is about to begin.
pub(crate) struct Resumable {
    answers: Arc<RunningAnswers>,
    key: ConversationKey,
    answer: Arc<RunningAnswer>,
}

/// The frames of an answer that is written before the last of them come.
pub(super) trait AnswerFrames: Stream<Item = Frame> + Send + 'static {
    /// Whether writing it has begun, which nothing stops any more.
    fn has_begun_writing(&self) -> bool;
}

/// An answer that clients may follow.
pub(crate) struct RunningAnswer {
    buffer: Mutex<Buffer>,
    /// Changes with every frame, and at the end.
    changed: watch::Sender<()>,
    /// A permit for each client that may follow it.
    followers: Arc<Semaphore>,
    stop: Notify,
}

/// The last frames of an answer.
struct Buffer {
    /// The messages that are answered, until they are.
    question: Arc<[Value]>,
    /// Bytes of them that count.
    question_bytes: u64,
    /// Messages of the conversation once it is answered.
    messages_after: usize,
    /// Index of the first buffered frame among all frames of the answer.
    first: usize,
    /// Their texts, which all clients share.
    frames: VecDeque<Arc<str>>,
    bytes: u64,
    share: BodyShare,
    has_ended: bool,
    /// Whether it was stopped before its end.
    was_stopped: bool,
}

impl RunningAnswers {
    /// Reserves the place of the answer to a question of a tenant; `None` without memory for it.
    pub(super) fn reserve(
        self: &Arc<Self>,
        ResumableTurn { key, messages: question, messages_after }: ResumableTurn,
        memory: &Arc<BodyMemory>,
        tenant: TenantId,
    ) -> Option<Resumable> {
        let question_bytes = memory.counted_of_request(question.iter().map(bytes_taken).sum());
        // The first frames do not count beside the question either.
        let share = memory.hold(tenant, question_bytes + SMALL_BYTES)?;
        let buffer = Buffer {
            question: question.into(),
            question_bytes,
            messages_after,
            first: 0,
            frames: VecDeque::new(),
            bytes: 0,
            share,
            has_ended: false,
            was_stopped: false,
        };
        let answer = RunningAnswer {
            buffer: Mutex::new(buffer),
            changed: watch::channel(()).0,
            followers: Arc::new(Semaphore::new(FOLLOWERS_MAX)),
            stop: Notify::new(),
        };
        Some(Resumable { answers: self.clone(), key, answer: Arc::new(answer) })
    }

    /// The answer of a conversation that runs or ended a moment ago.
    pub(crate) fn get(&self, key: &ConversationKey) -> Option<Arc<RunningAnswer>> {
        self.lock().get(key).cloned()
    }

    /// The question of a conversation that is being answered, and the number of its messages once it is.
    pub(crate) fn question(&self, key: &ConversationKey) -> Option<(Arc<[Value]>, usize)> {
        let answer = self.get(key)?;
        let buffer = answer.lock();
        (!buffer.has_ended).then(|| (buffer.question.clone(), buffer.messages_after))
    }

    /// Whether there is no answer of any conversation.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Stops the answer of a conversation and waits until the conversation is free. Returns whether one was stopped: one
    /// that is being written already comes to its end.
    pub(crate) async fn stop(&self, key: &ConversationKey) -> bool {
        let Some(answer) = self.get(key) else { return false };
        answer.stop.notify_one();
        answer.ended().await;
        let was_stopped = answer.lock().was_stopped;
        if was_stopped {
            self.remove(key, &Arc::downgrade(&answer));
        }
        was_stopped
    }

    /// Removes an answer, unless the next one of its conversation has taken its place.
    fn remove(&self, key: &ConversationKey, answer: &Weak<RunningAnswer>) {
        let mut answers = self.lock();
        if answers.get(key).is_some_and(|found| Arc::as_ptr(found) == answer.as_ptr()) {
            answers.remove(key);
        }
    }

    /// Drops what is buffered of a conversation's last answer.
    pub(crate) fn forget(&self, key: &ConversationKey) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ConversationKey, Arc<RunningAnswer>>> {
        // Every change of the map is one call, so the map is consistent after any panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Resumable {
    /// Lets the frames of the answer come whether a client reads them or not. Returns the answer, and a receiver that
    /// is closed when the last frame has come.
    pub(super) fn begin(self, frames: impl AnswerFrames) -> (Arc<RunningAnswer>, watch::Receiver<()>) {
        let Resumable { answers, key, answer } = self;
        let (running, ended) = watch::channel(());
        answers.lock().insert(key.clone(), answer.clone());
        let begun = answer.clone();
        tokio::spawn(async move {
            // A task of its own, so that a panic is an end too.
            let received = tokio::spawn(answer.clone().receive(frames)).await;
            answer.end();
            drop(running);
            let left = Arc::downgrade(&answer);
            drop(answer);
            if received.unwrap_or(false) {
                tokio::time::sleep(LIFE).await;
            }
            answers.remove(&key, &left);
        });
        (begun, ended)
    }
}

impl RunningAnswer {
    /// The frames from this one on, those to come included.
    ///
    /// # Errors
    /// If it is not buffered any more, or as many clients follow the answer as may.
    pub(crate) fn follow(self: &Arc<Self>, from: usize) -> Result<ReceiverStream<Frame>, ApiError> {
        let permit = self.followers.clone().try_acquire_owned().map_err(|_| many_follow())?;
        if from < self.lock().first {
            return Err(not_buffered(from).at("from"));
        }
        let (sender, frames) = mpsc::channel(1);
        tokio::spawn(self.clone().send_to(sender, permit, from));
        Ok(ReceiverStream::new(frames))
    }

    /// Buffers the frames as they come. Returns whether the last one came, and false if the answer was stopped.
    async fn receive(self: Arc<Self>, frames: impl AnswerFrames) -> bool {
        let mut frames = pin!(frames);
        loop {
            tokio::select! {
                frame = frames.next() => match frame {
                    Some(frame) => self.push(&frame),
                    None => return true,
                },
                () = self.stop.notified() => if !frames.has_begun_writing() {
                    self.lock().was_stopped = true;
                    return false;
                },
            }
        }
    }

    /// Sends the frames from this one on to a client, one at a time, until the client leaves. One that has fallen
    /// behind the buffer is told so: a stream that lacks frames must not look complete.
    async fn send_to(
        self: Arc<Self>,
        sender: mpsc::Sender<Frame>,
        _permit: OwnedSemaphorePermit,
        mut next: usize,
    ) {
        let mut changed = self.changed.subscribe();
        loop {
            changed.mark_unchanged();
            let Some((frame, has_ended)) = self.read(next) else {
                let _ = sender.send(Frame::Json(not_buffered(next).body())).await;
                return;
            };
            match frame {
                Some(text) => {
                    if sender.send(Frame::Written(text)).await.is_err() {
                        return;
                    }
                    next += 1;
                }
                None if has_ended => return,
                None => tokio::select! {
                    _ = changed.changed() => {}
                    () = sender.closed() => return,
                },
            }
        }
    }

    /// The text of the frame with this index, if it has come, and whether no more will come; `None` if it is not
    /// buffered any more.
    fn read(&self, index: usize) -> Option<(Option<Arc<str>>, bool)> {
        let buffer = self.lock();
        let frame = buffer.frames.get(index.checked_sub(buffer.first)?).cloned();
        Some((frame, buffer.has_ended))
    }

    fn push(&self, frame: &Frame) {
        let text = frame.text();
        let mut buffer = self.lock();
        buffer.push(text);
        if matches!(frame, Frame::End(_)) {
            buffer.end();
        }
        drop(buffer);
        self.changed.send_replace(());
    }

    fn end(&self) {
        self.lock().end();
        self.changed.send_replace(());
    }

    async fn ended(&self) {
        let mut changed = self.changed.subscribe();
        while !self.lock().has_ended {
            // The sender is this answer's own, so the wait cannot fail.
            let _ = changed.changed().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Buffer> {
        // A frame is pushed or dropped as a whole, so the buffer is consistent after any panic.
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffer {
    fn push(&mut self, frame: Arc<str>) {
        self.bytes += frame.len() as u64;
        self.frames.push_back(frame);
        while self.bytes > BYTES_MAX || !self.share.resize(self.question_bytes + self.bytes.max(SMALL_BYTES))
        {
            let Some(oldest) = self.frames.pop_front() else { return };
            self.bytes -= oldest.len() as u64;
            self.first += 1;
        }
    }

    fn end(&mut self) {
        self.has_ended = true;
        (self.question, self.question_bytes) = (Arc::default(), 0);
        self.share.resize(self.bytes);
    }
}

fn not_buffered(event: usize) -> ApiError {
    let message = format!(
        "event {event} of the answer is not buffered any more; when the answer has ended, GET /v1/conversations/{{id}} has all of it"
    );
    ApiError::new(StatusCode::GONE, Some("answer_not_buffered"), message)
}

fn many_follow() -> ApiError {
    let message = format!(
        "{FOLLOWERS_MAX} clients follow this answer already; close one of them, or try again in {RETRY_AFTER_S} s"
    );
    ApiError::busy(message, RETRY_AFTER_S)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TENANT: TenantId = TenantId(1);

    impl AnswerFrames for ReceiverStream<Frame> {
        fn has_begun_writing(&self) -> bool {
            false
        }
    }

    fn key() -> ConversationKey {
        ConversationKey { tenant: "a".to_owned(), id: "conv_1".to_owned() }
    }

    /// An answer of these frames, the sender of which stands for the engine.
    fn begun(
        answers: &Arc<RunningAnswers>,
    ) -> (mpsc::Sender<Frame>, Arc<RunningAnswer>, watch::Receiver<()>) {
        let question = ResumableTurn { key: key(), messages: vec![json!("asked")], messages_after: 2 };
        let place = answers.reserve(question, &BodyMemory::new(1 << 20, false), TENANT).unwrap();
        let (engine, frames) = mpsc::channel(1);
        let (answer, ended) = place.begin(ReceiverStream::new(frames));
        (engine, answer, ended)
    }

    fn frame(number: usize) -> Frame {
        Frame::Written(json!({"number": number}).to_string().into())
    }

    async fn all(answer: &Arc<RunningAnswer>, from: usize) -> Vec<Frame> {
        answer.follow(from).unwrap().collect().await
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_followed_from_any_event_and_lives_a_moment_longer() {
        let answers = Arc::<RunningAnswers>::default();
        let (engine, answer, mut ended) = begun(&answers);
        let mut early = answer.follow(0).unwrap();
        for number in 0..100 {
            engine.send(frame(number)).await.unwrap();
        }
        assert_eq!(early.next().await, Some(frame(0)));
        drop(early);
        assert_eq!(answers.question(&key()), Some((Arc::from([json!("asked")]), 2)));
        let late = tokio::spawn(async move { all(&answer, 98).await });
        engine.send(Frame::End("[DONE]")).await.unwrap();
        drop(engine);
        assert_eq!(late.await.unwrap(), [frame(98), frame(99), Frame::Written("[DONE]".into())]);
        assert!(ended.changed().await.is_err(), "it has ended");
        assert_eq!(answers.question(&key()), None);
        let again = answers.get(&key()).unwrap();
        assert_eq!(all(&again, 0).await.len(), 101);
        assert_eq!(all(&again, 1000).await, []);
        tokio::time::sleep(LIFE + Duration::from_secs(1)).await;
        assert!(answers.get(&key()).is_none());
    }

    /// It was in memory for as long as the frames are.
    #[tokio::test]
    async fn a_question_is_in_memory_and_counts_until_its_answer_has_ended() {
        let (answers, memory) = (Arc::<RunningAnswers>::default(), BodyMemory::new(1 << 20, false));
        let messages = vec![json!("x".repeat(1 << 20))];
        let question = ResumableTurn { key: key(), messages, messages_after: 2 };
        let place = answers.reserve(question, &memory, TENANT).unwrap();
        let (engine, frames) = mpsc::channel(1);
        let (answer, mut ended) = place.begin(ReceiverStream::new(frames));
        engine.send(frame(0)).await.unwrap();
        assert!(memory.taken() > 800 << 10, "{}", memory.taken());
        engine.send(Frame::End("[DONE]")).await.unwrap();
        drop(engine);
        assert!(ended.changed().await.is_err());
        assert!(answer.lock().question.is_empty());
        assert_eq!(memory.taken(), 0);
        assert_eq!(all(&answer, 0).await.len(), 2);
    }

    #[tokio::test]
    async fn a_stopped_answer_ends_at_once_and_its_frames_are_dropped() {
        let answers = Arc::<RunningAnswers>::default();
        let (engine, answer, _ended) = begun(&answers);
        engine.send(frame(0)).await.unwrap();
        assert!(answers.stop(&key()).await);
        assert!(engine.send(frame(1)).await.is_err(), "nobody takes more of it");
        assert!(answers.get(&key()).is_none() && !answers.stop(&key()).await);
        assert!(all(&answer, 0).await.len() <= 1);
    }

    #[tokio::test]
    async fn the_oldest_frames_of_a_long_answer_are_dropped() {
        let answers = Arc::<RunningAnswers>::default();
        let (engine, answer, mut ended) = begun(&answers);
        let long = "x".repeat(BYTES_MAX as usize / 4);
        for _ in 0..6 {
            engine.send(Frame::Json(json!(long))).await.unwrap();
        }
        drop(engine);
        assert!(ended.changed().await.is_err());
        assert_eq!(answer.follow(0).err().unwrap().code(), "answer_not_buffered", "its beginning is gone");
        assert_eq!(all(&answer, 3).await.len(), 3);
    }

    /// Its stream ended as one that is complete, except for the end of the text.
    #[tokio::test]
    async fn a_client_that_falls_behind_the_buffer_is_told_so() {
        let answers = Arc::<RunningAnswers>::default();
        let (engine, answer, mut ended) = begun(&answers);
        let slow = answer.follow(0).unwrap();
        let long = "x".repeat(BYTES_MAX as usize / 4);
        for _ in 0..9 {
            engine.send(Frame::Json(json!(long))).await.unwrap();
        }
        drop(engine);
        assert!(ended.changed().await.is_err());
        let frames: Vec<Frame> = slow.collect().await;
        let Some(Frame::Json(last)) = frames.last() else { panic!("{} frames and no error", frames.len()) };
        assert_eq!(last["error"]["code"], "answer_not_buffered");
    }

    #[tokio::test]
    async fn the_clients_of_an_answer_are_bounded_and_share_its_frames() {
        let answers = Arc::<RunningAnswers>::default();
        let (engine, answer, _ended) = begun(&answers);
        let mut clients: Vec<_> = (0..FOLLOWERS_MAX).map(|_| answer.follow(0).unwrap()).collect();
        assert_eq!(answer.follow(0).err().unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
        engine.send(frame(0)).await.unwrap();
        let mut texts = Vec::new();
        for client in &mut clients {
            let Some(Frame::Written(text)) = client.next().await else { panic!("a text") };
            texts.push(text);
        }
        assert!(texts.iter().all(|text| Arc::ptr_eq(text, &texts[0])), "nobody has a copy");
        clients.pop();
        while answer.follow(0).is_err() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn clients_that_wait_for_the_end_of_an_answer_do_not_follow_it() {
        let answers = Arc::<RunningAnswers>::default();
        let (_engine, answer, _ended) = begun(&answers);
        let wait = || {
            let answer = answer.clone();
            tokio::spawn(async move { answer.ended().await })
        };
        let waiting: Vec<_> = (0..FOLLOWERS_MAX).map(|_| wait()).collect();
        while answer.changed.receiver_count() < FOLLOWERS_MAX {
            tokio::task::yield_now().await;
        }
        assert!(answer.follow(0).is_ok(), "nobody follows it yet");
        waiting.iter().for_each(|waiting| waiting.abort());
    }

    #[tokio::test]
    async fn a_new_answer_takes_the_place_of_the_last_one() {
        let answers = Arc::<RunningAnswers>::default();
        let (first, _, mut ended) = begun(&answers);
        drop(first);
        assert!(ended.changed().await.is_err());
        let (second, answer, _ended) = begun(&answers);
        assert!(Arc::ptr_eq(&answers.get(&key()).unwrap(), &answer));
        answers.forget(&key());
        assert!(answers.get(&key()).is_none());
        drop(second);
    }
}
