//! The state that the handles of a model share: the engine, the conversations, and the threads for work after answers.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kvik_engine::api;
use kvik_engine::engine::Engine;
use kvik_memory::context::ChainId;
use kvik_memory::memory::{GoesOn, Host, Memory, Spoken, make_summaries};
use kvik_session::{Chat, NextTurns, Session, Upcoming};
use kvik_text::answer::Reading;
use serde_json::Value;

use crate::answer::{Answer, Follow};
use crate::conversation_file::{ConversationFile, Remembers};
use crate::error::Error;
use crate::kept::KeptPrompts;
use crate::next_turn::NextTurn;

/// Tenant of all conversations: an application has a single user.
pub(crate) const TENANT: &str = "default";

/// An engine with everything that answers need.
pub(crate) struct Opened {
    pub(crate) session: Session,
    pub(crate) next_turns: NextTurns,
    pub(crate) kept: KeptPrompts,
    /// Dropped before the file, to which its last summaries are written.
    pub(crate) memory: Arc<Memory<Core>>,
    pub(crate) conversations: Arc<ConversationFile>,
}

impl Remembers for Memory<Core> {
    fn forget(&self, tenant: &str, chain: &BTreeSet<ChainId>) -> Result<(), Error> {
        // That of the memory itself, which goes before this one of the same name.
        Ok(Memory::forget(self, tenant, chain)?)
    }
}

/// An open model.
pub(crate) struct Core {
    pub(crate) opened: Opened,
    /// Cancellation flags of the answers that may still be running.
    answers: Mutex<Vec<Weak<AtomicBool>>>,
    /// Starts the thread that makes summaries, at the first turn of a conversation.
    makes_summaries: Once,
    /// Threads for work after answers that may not have ended.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Core {
    pub(crate) fn new(opened: Opened) -> Arc<Core> {
        Arc::new(Core {
            opened,
            answers: Mutex::default(),
            makes_summaries: Once::new(),
            threads: Mutex::default(),
        })
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.opened.session.engine
    }

    /// Submits a request to the engine. From here on, `cancel_all` includes its answer.
    pub(crate) fn submit(
        &self,
        request: api::Request,
        reading: &Reading,
        follow: Option<Follow>,
    ) -> Result<Answer, Error> {
        let (answer, sink) = Answer::new(reading, follow);
        self.watch(&answer);
        self.engine().submit(request, sink)?;
        Ok(answer)
    }

    /// Notes the request for the answer to the messages of a chat, whose next turn may be computed behind it: answers in
    /// it get the tokens with which they were generated.
    pub(crate) fn next_turn(
        self: &Arc<Self>,
        request: &mut api::Request,
        chat: (Option<Chat>, Vec<Value>),
    ) -> NextTurn {
        self.engine().as_generated(request);
        let core = Arc::downgrade(self);
        let begin = move |upcoming| {
            let Some(core) = core.upgrade() else { return };
            let own = core.clone();
            core.spawn(async move { own.compute_next(upcoming) });
        };
        NextTurn::of(&self.opened.next_turns, request, chat, Box::new(begin))
    }

    /// Submits the request that computes a turn, unless others wait.
    fn compute_next(&self, upcoming: Upcoming) {
        if self.engine().stats().waiting > 0 {
            return;
        }
        let texts = &self.opened.session.texts;
        let prepared = upcoming.prepare(texts, |request| self.engine().as_generated(request));
        let Some((request, sink)) = prepared else { return };
        if let Err(error) = self.engine().submit(request, sink) {
            tracing::debug!("a turn is not computed ahead: {error}");
        }
    }

    /// Registers the cancellation flag of an answer, and removes those of dropped answers.
    fn watch(&self, answer: &Answer) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.retain(|answer| answer.strong_count() > 0);
        answers.push(answer.canceller().watch());
    }

    pub(crate) fn cancel_all(&self) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        self.opened.next_turns.stop();
        let cancelled = answers.drain(..).filter_map(|answer| answer.upgrade());
        cancelled.for_each(|answer| answer.store(true, Ordering::Relaxed));
    }

    /// Ends all work: the files of conversations can be opened again when this returns.
    pub(crate) fn end(&self) {
        self.cancel_all();
        self.opened.memory.close();
        self.engine().shutdown(Duration::ZERO);
        // Each thread may have started another one before it ended.
        loop {
            let next = self.lock_threads().pop();
            let Some(thread) = next else { break };
            // A panic stays within its thread.
            let _ = thread.join();
        }
    }

    fn lock_threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread that makes due summaries, once.
    pub(crate) fn make_summaries(self: &Arc<Self>) {
        self.makes_summaries.call_once(|| self.spawn(make_summaries(self.clone())));
    }
}

impl Host for Core {
    type Caller = ();
    type Error = Error;

    fn memory(&self) -> &Arc<Memory<Core>> {
        &self.opened.memory
    }

    fn tenant((): &()) -> &str {
        TENANT
    }

    fn adapters(&self) -> Option<api::AdapterMix> {
        None
    }

    async fn said(&self, (): &(), request: api::Request, _: bool) -> Result<Spoken, Error> {
        self.submit(request, &Reading::Plain, None)?.whole().await
    }

    async fn apart<T: Send + 'static>(
        &self,
        (): &(),
        _: bool,
        work: impl FnOnce(GoesOn<'_, Error>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        // The calling thread does only this work, so it may block.
        work(&|| Ok(()))
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let thread = thread::Builder::new().name("kvik-memory".to_owned());
        match thread.spawn(move || pollster::block_on(work)) {
            Ok(started) => {
                let mut threads = self.lock_threads();
                threads.retain(|thread| !thread.is_finished());
                threads.push(started);
            }
            Err(error) => tracing::warn!("no thread for the work behind an answer: {error}"),
        }
    }
}
