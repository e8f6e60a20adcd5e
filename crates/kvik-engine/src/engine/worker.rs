//! The thread that owns the model, the cache and the scheduler.
//!
//! Commands come in by a channel, results go out through the requests' sinks, numbers
//! through a snapshot. Nothing is shared with it that could block it. When there is nothing to
//! do, it sleeps until a command comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use super::board::Board;
use crate::api::{Event, RequestError};
use crate::model::batch::Runner;
use crate::panics::contain;
use crate::schedule::{Limits, Rest, Scheduler, Submission};

/// What the worker is told.
pub(crate) enum Command {
    /// Serve a request.
    Submit(Pending),
    /// Do something between two steps: look at the cache, or change what it keeps. It does not panic.
    Ask(Box<dyn FnOnce(&mut Scheduler) + Send>),
    /// Look whether the disk has done something. There is one of these at a time.
    Wake,
    /// Refuse what is queued, let the rest run for `grace`, then stop.
    Shutdown { grace: Duration },
}

/// A submission on its way to the scheduler. Whoever drops it, its listener is told that the engine stops.
pub(crate) struct Pending(Option<Box<Submission>>);

impl Pending {
    pub(crate) fn new(submission: Submission) -> Pending {
        Pending(Some(Box::new(submission)))
    }

    /// The submission, whose listener is no longer told anything from here.
    pub(crate) fn take(mut self) -> Option<Box<Submission>> {
        self.0.take()
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(mut submission) = self.0.take() {
            // A listener that panics hears nothing.
            let _ = contain(|| submission.sink.send(Event::Failed(RequestError::Stopping)));
        }
    }
}

/// The worker's state.
pub(crate) struct Worker {
    pub(crate) scheduler: Scheduler,
    pub(crate) runner: Box<dyn Runner + Send>,
    pub(crate) limits: Limits,
    pub(crate) commands: Receiver<Command>,
    pub(crate) board: Board,
    /// Whether a [`Command::Wake`] is on its way.
    pub(crate) woken: Arc<AtomicBool>,
    /// When what still runs is given up; set once the engine is stopping.
    pub(crate) deadline: Option<Instant>,
}

/// Whether the worker goes on.
#[derive(PartialEq, Eq)]
enum Life {
    Goes,
    Ends,
}

impl Worker {
    /// Serves until it is told to stop or nobody can tell it anything any more.
    pub(crate) fn run(mut self) {
        while self.listen() == Life::Goes {
            self.step();
            self.board.post(&self.scheduler);
            self.scheduler.take_leave();
        }
        self.scheduler.fail_all(&RequestError::Stopping);
        self.board.post(&self.scheduler);
        // What is still on its way is dropped with the channel, and says so to who waits for it.
    }

    /// Takes all commands there are; waits for one while there is nothing else to do.
    fn listen(&mut self) -> Life {
        let mut rest = self.scheduler.rest();
        loop {
            match self.next_command(rest) {
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Disconnected) if self.scheduler.is_idle() => return Life::Ends,
                Err(_) => break,
            }
            rest = Rest::None;
        }
        let expired = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let finished = self.deadline.is_some() && self.scheduler.is_idle();
        if expired || finished { Life::Ends } else { Life::Goes }
    }

    fn next_command(&mut self, rest: Rest) -> Result<Command, RecvTimeoutError> {
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match rest {
            Rest::Forever if left.is_none() => {
                self.verify();
                self.commands.recv().map_err(|_| RecvTimeoutError::Disconnected)
            }
            Rest::For(time) => self.commands.recv_timeout(left.map_or(time, |left| left.min(time))),
            _ => self.commands.try_recv().map_err(|error| match error {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            }),
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(pending) if self.deadline.is_some() => drop(pending),
            Command::Submit(pending) => {
                if let Some(submission) = pending.take() {
                    self.scheduler.submit(*submission, &self.limits);
                }
            }
            Command::Ask(ask) => ask(&mut self.scheduler),
            Command::Wake => self.woken.store(false, Ordering::Release),
            Command::Shutdown { grace } => {
                // A grace too long to add means no deadline that matters.
                let far = Duration::from_secs(365 * 24 * 3600);
                self.deadline = Some(Instant::now() + grace.min(far));
                self.scheduler.fail_queued(&RequestError::Stopping);
            }
        }
    }

    /// One step. A panic in it that no request could be blamed for costs those that run, not the engine.
    fn step(&mut self) {
        let (scheduler, runner) = (&mut self.scheduler, self.runner.as_mut());
        if let Err(error) = contain(|| scheduler.step(runner)) {
            tracing::error!("a step panicked: {error}");
            self.scheduler.recover(&error);
        }
    }

    /// Checks the cache's invariants in builds that are for finding errors.
    fn verify(&mut self) {
        if cfg!(debug_assertions)
            && let Err(violation) = self.scheduler.cache().check()
        {
            tracing::error!("the cache violates an invariant and is emptied: {violation}");
            self.scheduler.recover(&RequestError::Internal(violation.to_string()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Sender, channel};

    use kvik_cache::{BlockId, CacheConfig, Policy};

    use super::*;
    use crate::api::KeptPrompt;
    use crate::api::{EventSink, Request};
    use crate::config::EngineConfig;
    use crate::engine::Engine;
    use crate::model::batch::Batch;
    use crate::text::stream::{TokenKind, Vocabulary};

    /// A model that always says the same, and stops the engine when it has somebody to tell.
    struct Dull(Option<Sender<Command>>);

    impl Runner for Dull {
        fn vocab_len(&self) -> usize {
            2
        }

        fn copy_partial(&mut self, _: BlockId, _: BlockId, _: usize) {}

        fn read_block(&self, _: BlockId, _: &mut [u8]) {}

        fn write_block(&mut self, _: BlockId, _: &[u8]) {}

        fn forward(&mut self, _: &Batch<'_>) -> &[f32] {
            if let Some(commands) = self.0.take() {
                commands.send(Command::Shutdown { grace: Duration::ZERO }).unwrap();
            }
            &[1.0, 0.0]
        }
    }

    fn config() -> EngineConfig {
        EngineConfig {
            context_tokens: 1000,
            parallel_max: 1,
            waiting_max: 10,
            choices_max: 1,
            prefill_rows_max: 64,
            prefill_rows_mixed_max: 64,
            block_bytes: 1024,
            model_digest: [7; 32],
            kv_format: "f32/f32".to_owned(),
        }
    }

    fn cache() -> CacheConfig {
        CacheConfig { blocks: 100, policy: Policy::Lru, ghosts: 0, pinned_max: 0 }
    }

    fn vocabulary() -> Vocabulary {
        Vocabulary::new([(b"a".to_vec(), TokenKind::Text), (b"b".to_vec(), TokenKind::Text)])
    }

    fn request() -> Request {
        let kept = KeptPrompt { tokens: vec![1; 40], salt: [0; 16], tenant: Default::default() };
        Request { max_tokens: 500, retain: Default::default(), ..kept.request() }
    }

    /// Notes that it was told of a failure, and then does something.
    struct Told<F>(Arc<Mutex<Option<RequestError>>>, F);

    impl<F: FnMut() + Send> EventSink for Told<F> {
        fn send(&mut self, event: Event) -> bool {
            if let Event::Failed(error) = event {
                *self.0.lock().unwrap() = Some(error);
                self.1();
            }
            true
        }

        fn is_closed(&self) -> bool {
            false
        }
    }

    /// Commands may come while the last requests are told that the engine stops.
    #[test]
    fn whatever_is_still_on_its_way_at_the_end_is_told() {
        let clock = Box::new(|| Duration::ZERO);
        let scheduler = Scheduler::new(config(), cache(), Arc::new(vocabulary()), clock).unwrap();
        let (sender, commands) = channel();
        let limits = Limits::new(&config(), 100, 2);
        let (first, last): (Arc<Mutex<_>>, Arc<Mutex<_>>) = Default::default();
        let (asked, answered) = channel::<()>();
        let (late, asked) = (sender.clone(), Mutex::new(Some(asked)));
        let told = last.clone();
        let then = move || {
            let ask: Option<Sender<()>> = asked.lock().unwrap().take();
            late.send(Command::Ask(Box::new(move |_| drop(ask)))).unwrap();
            let sink = Box::new(Told(told.clone(), || {}));
            let submission = Submission { request: request(), guide: None, sink };
            late.send(Command::Submit(Pending::new(submission))).unwrap();
        };
        let sink = Box::new(Told(first.clone(), then));
        let submission = Submission { request: request(), guide: None, sink };
        sender.send(Command::Submit(Pending::new(submission))).unwrap();
        let board = Board::new(&scheduler, 1024);
        let runner = Box::new(Dull(Some(sender)));
        Worker { scheduler, runner, limits, commands, board, woken: Arc::default(), deadline: None }.run();
        assert_eq!(*first.lock().unwrap(), Some(RequestError::Stopping));
        assert_eq!(*last.lock().unwrap(), Some(RequestError::Stopping), "also behind what is no submission");
        assert!(answered.recv().is_err(), "and who asked does not wait for ever");
    }

    #[test]
    fn a_panic_of_a_look_into_the_engine_is_an_error_of_who_looks() {
        let engine = Engine::start(Dull(None), vocabulary(), cache(), config()).unwrap();
        let before = engine.generate(request()).unwrap();
        for _ in 0..3 {
            let error = engine.ask(|_| -> usize { panic!("it broke") }).unwrap_err();
            assert_eq!(error, RequestError::Internal("it broke".to_owned()));
        }
        let after = engine.generate(request()).unwrap();
        assert_eq!(after.choices, before.choices);
        assert_eq!(after.report.cached_tokens, 39, "what was known before still is");
        engine.shutdown(Duration::ZERO);
    }
}
