//! The thread that owns the model, the cache and the scheduler.
//!
//! The thread receives commands through a channel, sends results through the requests' sinks, and publishes
//! statistics as a snapshot. It shares nothing that could block it. When it has nothing to do, it
//! sleeps until a command arrives.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use kvik_model::batch::Runner;
use kvik_model::pulse::{Phase, Pulse};

use super::board::Board;
use super::time_share::Rests;
use crate::api::{Event, KvEvent, RequestError};
use crate::panics::contain;
use crate::schedule::{Pause, RequestLimits, Scheduler, Submission};

/// How long an engine that ends writes what the next start wants; what is worth most is written first.
const LAST_WRITES: Duration = Duration::from_secs(5);
/// How long it waits for a disk that completes nothing.
const LAST_WRITES_STALL: Duration = Duration::from_secs(1);
/// How often it looks what has been written.
const LAST_WRITES_LOOK: Duration = Duration::from_millis(5);
/// Time for commands between two steps. The next step waits for one that has begun, and not for those behind it: a
/// caller that asks again as soon as it is answered would otherwise hold up all answers.
const COMMANDS_TIME: Duration = Duration::from_millis(1);

/// A closure that runs between two steps. Its reply is sent once the change of the cache has been published.
pub(crate) type Call = Box<dyn FnOnce(&mut Scheduler, &mut dyn Runner) -> Reply + Send>;

/// Sends a call's result to its caller.
pub(crate) type Reply = Box<dyn FnOnce()>;

/// A command to the worker.
pub(crate) enum Command {
    /// Serve a request.
    Submit(Pending),
    /// Run a closure between two steps, which may read or change the cache. It does not panic.
    Call(Call),
    /// Collect completions of the disk. At most one is queued.
    Wake,
    /// Refuse queued requests, let running ones run for `grace`, then stop.
    Shutdown { grace: Duration },
}

/// A submission on its way to the scheduler. Dropping it sends [`RequestError::Stopping`] to its sink.
pub(crate) struct Pending(Option<Box<Submission>>);

impl Pending {
    pub(crate) fn new(submission: Submission) -> Pending {
        Pending(Some(Box::new(submission)))
    }

    /// The submission, whose sink the caller now has to notify.
    pub(crate) fn take(mut self) -> Option<Box<Submission>> {
        self.0.take()
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(mut submission) = self.0.take() {
            // A sink that panics gets no event.
            let _ = contain(|| submission.sink.send(Event::Failed(RequestError::Stopping)));
        }
    }
}

/// The worker's state.
pub(crate) struct Worker {
    pub(crate) scheduler: Scheduler,
    pub(crate) runner: Box<dyn Runner + Send>,
    pub(crate) limits: RequestLimits,
    pub(crate) commands: Receiver<Command>,
    pub(crate) board: Board,
    /// Whether a [`Command::Wake`] is queued.
    pub(crate) woken: Arc<AtomicBool>,
    /// When running requests fail; set when the engine is stopping.
    pub(crate) deadline: Option<Instant>,
    pub(crate) pulse: Arc<Pulse>,
    /// When the clock was at zero.
    pub(crate) started: Instant,
    pub(crate) rests: Rests,
    /// See [`KvListener`](crate::api::KvListener).
    pub(crate) kv_sink: Option<Box<dyn FnMut(Vec<KvEvent>) + Send>>,
    /// See [`Attached::before_step`](super::Attached::before_step).
    pub(crate) before_step: Option<Box<dyn FnMut() + Send>>,
}

/// Records that the thread has ended, even after a panic.
struct EndGuard(Arc<Pulse>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.enter(Phase::Ended);
    }
}

impl Worker {
    /// Serves until a shutdown is complete or every sender of commands has been dropped.
    pub(crate) fn run(mut self) {
        let _end = EndGuard(self.pulse.clone());
        while self.receive_commands().is_continue() {
            if self.rest().is_some() {
                self.attend()
            } else {
                self.step()
            }
            self.publish();
            self.pulse.enter(Phase::Notify);
            self.scheduler.notify_finished();
        }
        self.pulse.enter(Phase::Notify);
        if let Err(error) = contain(|| self.scheduler.spill_for_next_start()) {
            tracing::error!("nothing is left for the next start: {error}");
        }
        self.scheduler.fail_all(&RequestError::Stopping);
        self.finish_writing();
        self.board.publish(&self.scheduler);
        // Dropping the channel drops the commands left in it, which notifies their senders.
    }

    /// Writes what the next start wants, for a limited time. Commands that arrive meanwhile come too late.
    fn finish_writing(&mut self) {
        let (begun, mut progress, mut left) = (Instant::now(), Instant::now(), usize::MAX);
        loop {
            let unwritten = self.scheduler.unwritten_blocks();
            if unwritten < left {
                (left, progress) = (unwritten, Instant::now());
            }
            if unwritten == 0 || begun.elapsed() > LAST_WRITES || progress.elapsed() > LAST_WRITES_STALL {
                return;
            }
            self.attend();
            match self.commands.recv_timeout(LAST_WRITES_LOOK) {
                Ok(Command::Wake) => self.woken.store(false, Ordering::Release),
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LAST_WRITES_LOOK),
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Executes the queued commands, for a limited time unless the scheduler is idle; waits for one while it has nothing
    /// to do.
    fn receive_commands(&mut self) -> ControlFlow<()> {
        self.pulse.enter(Phase::Receive);
        let mut pause = match (self.scheduler.next_pause(), self.rest()) {
            (Pause::None, Some(rest)) => Pause::For(rest),
            (pause, _) => pause,
        };
        let mut spent = Duration::ZERO;
        while spent < COMMANDS_TIME || self.scheduler.next_pause() == Pause::Forever {
            let command = self.next_command(pause);
            self.pulse.enter(Phase::Receive);
            match command {
                Ok(command) => spent += self.execute(command),
                Err(RecvTimeoutError::Disconnected) if self.scheduler.is_idle() => {
                    return ControlFlow::Break(());
                }
                Err(_) => break,
            }
            pause = Pause::None;
        }
        let expired = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let finished = self.deadline.is_some() && self.scheduler.is_idle();
        if expired || finished { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn next_command(&mut self, pause: Pause) -> Result<Command, RecvTimeoutError> {
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match pause {
            Pause::Forever if left.is_none() => {
                self.verify();
                self.pulse.enter(Phase::Idle);
                self.commands.recv().map_err(|_| RecvTimeoutError::Disconnected)
            }
            Pause::For(time) => {
                self.pulse.enter(Phase::Idle);
                self.commands.recv_timeout(left.map_or(time, |left| left.min(time)))
            }
            _ => self.commands.try_recv().map_err(|error| match error {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            }),
        }
    }

    /// Executes a command; returns how long that took.
    fn execute(&mut self, command: Command) -> Duration {
        let began = Instant::now();
        match command {
            Command::Submit(pending) if self.deadline.is_some() => drop(pending),
            Command::Submit(pending) => {
                if let Some(submission) = pending.take() {
                    self.scheduler.submit(*submission, &self.limits);
                }
            }
            Command::Call(call) => {
                self.pulse.enter(Phase::Call);
                let reply = call(&mut self.scheduler, self.runner.as_mut());
                self.publish();
                reply();
            }
            Command::Wake => self.woken.store(false, Ordering::Release),
            Command::Shutdown { grace } => {
                // Caps a grace that would overflow the clock.
                let far = Duration::from_secs(365 * 24 * 3600);
                self.deadline = Some(Instant::now() + grace.min(far));
                self.scheduler.fail_queued(&RequestError::Stopping);
            }
        }
        began.elapsed()
    }

    /// How long to rest before the next poll, if the share of time requires it. Without requests no rest is needed.
    fn rest(&mut self) -> Option<Duration> {
        if self.scheduler.is_idle() {
            return None;
        }
        self.rests.rest(self.started.elapsed())
    }

    /// Ends requests and continues disk transfers during a rest.
    fn attend(&mut self) {
        let (scheduler, runner) = (&mut self.scheduler, self.runner.as_mut());
        if let Err(error) = contain(|| scheduler.attend(runner)) {
            tracing::error!("a rest panicked: {error}");
            self.scheduler.recover(&error, self.runner.as_mut());
        }
    }

    /// Runs a step. A panic that cannot be attributed to a request fails the running requests, not the engine.
    fn step(&mut self) {
        if let Some(before_step) = &mut self.before_step {
            self.pulse.enter(Phase::Call);
            before_step();
        }
        let began = Instant::now();
        let (scheduler, runner) = (&mut self.scheduler, self.runner.as_mut());
        if let Err(error) = contain(|| scheduler.step(runner)) {
            tracing::error!("a step panicked: {error}");
            self.scheduler.recover(&error, self.runner.as_mut());
        }
        self.rests.computed(began.elapsed(), self.started.elapsed());
    }

    /// Makes a step or a call visible to other threads, before its caller is answered: KV events and statistics.
    fn publish(&mut self) {
        if let Some(sink) = &mut self.kv_sink {
            let events = self.scheduler.prefixes.take_kv_events();
            if !events.is_empty() {
                sink(events);
            }
        }
        self.board.publish(&self.scheduler);
    }

    /// Checks the cache's invariants in debug builds.
    fn verify(&mut self) {
        if cfg!(debug_assertions)
            && let Err(violation) = self.scheduler.cache().check()
        {
            tracing::error!("the cache violates an invariant and is emptied: {violation}");
            let error = RequestError::Internal(violation.to_string());
            self.scheduler.recover(&error, self.runner.as_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::{Sender, channel};

    use kvik_cache::{BlockId, CacheConfig, Policy};

    use super::*;
    use crate::api::{EventSink, KvListener, PinnedPrompt, Request};
    use crate::config::EngineConfig;
    use crate::engine::{Attached, Engine, TimeShare};
    use kvik_model::batch::Batch;
    use kvik_model::observation::Watched;
    use kvik_text::stream::{TokenKind, Vocabulary};

    /// A model that always generates the same token, and stops the engine at its first step if it has a channel.
    struct ConstantRunner(Option<Sender<Command>>);

    impl Runner for ConstantRunner {
        fn vocab_len(&self) -> usize {
            2
        }

        fn copy_partial(&mut self, _: BlockId, _: BlockId, _: usize) {}

        fn read_block(&self, _: BlockId, _: &mut [u8]) {}

        fn write_block(&mut self, _: BlockId, _: &[u8]) {}

        fn forward(&mut self, _: &Batch<'_>, _: &mut [Watched<'_>]) -> &[f32] {
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
            draft_rows_max: 0,
            draft_sources: crate::stats::DraftSources::ALL,
            block_bytes: 1024,
            model_digest: [7; 32],
            kv_format: "f32/f32".to_owned(),
            repeat: Default::default(),
            kv_heads: vec![1],
            tile_heads: vec![1],
            auxiliary: kvik_cache::AuxiliaryState::default(),
            latent: false,
            calibration: None,
            gates: None,
        }
    }

    fn cache() -> CacheConfig {
        CacheConfig { blocks: 100, policy: Policy::Lru, ghosts: 0, pinned_max: 0 }
    }

    fn vocabulary() -> Vocabulary {
        Vocabulary::new([(b"a".to_vec(), TokenKind::Text), (b"b".to_vec(), TokenKind::Text)])
    }

    fn request() -> Request {
        let kept = PinnedPrompt {
            tokens: vec![1; 40],
            adapters: None,
            salt: [0; 16],
            tenant: Default::default(),
            retention: None,
        };
        Request { max_tokens: 500, lifetime: Default::default(), ..kept.request() }
    }

    fn worker(runner: ConstantRunner, commands: Receiver<Command>) -> Worker {
        let clock = Box::new(|| Duration::ZERO);
        let scheduler = Scheduler::new(config(), cache(), Arc::new(vocabulary()), clock).unwrap();
        Worker {
            board: Board::new(&scheduler, 1024),
            pulse: scheduler.pulse().clone(),
            scheduler,
            runner: Box::new(runner),
            limits: RequestLimits::new(&config(), 100, 2),
            commands,
            woken: Arc::default(),
            deadline: None,
            started: Instant::now(),
            rests: Rests::new(TimeShare::WHOLE),
            kv_sink: None,
            before_step: None,
        }
    }

    /// Records the failure it receives, then calls a closure.
    struct FailureSink<F>(Arc<Mutex<Option<RequestError>>>, F);

    impl<F: FnMut() + Send> EventSink for FailureSink<F> {
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

    /// Commands may arrive while the last requests are notified that the engine stops.
    #[test]
    fn commands_still_queued_at_shutdown_are_notified() {
        let (sender, commands) = channel();
        let (first, last): (Arc<Mutex<_>>, Arc<Mutex<_>>) = Default::default();
        let (result, received) = channel::<()>();
        let (late, result) = (sender.clone(), Mutex::new(Some(result)));
        let last_failure = last.clone();
        let then = move || {
            let result: Option<Sender<()>> = result.lock().unwrap().take();
            late.send(Command::Call(Box::new(move |_, _| Box::new(move || drop(result))))).unwrap();
            let sink = Box::new(FailureSink(last_failure.clone(), || {}));
            let submission = Submission { request: request(), guide: None, sink };
            late.send(Command::Submit(Pending::new(submission))).unwrap();
        };
        let sink = Box::new(FailureSink(first.clone(), then));
        let submission = Submission { request: request(), guide: None, sink };
        sender.send(Command::Submit(Pending::new(submission))).unwrap();
        let worker = worker(ConstantRunner(Some(sender)), commands);
        let pulse = worker.pulse.clone();
        worker.run();
        assert_eq!(pulse.life().phase, Phase::Ended);
        assert_eq!(*first.lock().unwrap(), Some(RequestError::Stopping));
        assert_eq!(
            *last.lock().unwrap(),
            Some(RequestError::Stopping),
            "also after a command of another kind"
        );
        assert!(received.recv().is_err(), "the caller does not wait for ever");
    }

    /// A call that takes all the time for commands, counts itself, and asks again `more` times before it is answered.
    fn insistent(commands: Sender<Command>, calls: Arc<AtomicUsize>, more: usize) -> Command {
        Command::Call(Box::new(move |_, _| {
            let began = Instant::now();
            while began.elapsed() < COMMANDS_TIME {}
            calls.fetch_add(1, Ordering::Relaxed);
            if more > 0 {
                commands.send(insistent(commands.clone(), calls, more - 1)).unwrap();
            }
            Box::new(|| {})
        }))
    }

    #[test]
    fn an_answer_waits_for_one_long_call_before_its_next_step() {
        let (sender, commands) = channel();
        let (calls, before_steps): (Arc<AtomicUsize>, Arc<Mutex<Vec<usize>>>) = Default::default();
        let mut worker = worker(ConstantRunner(None), commands);
        let (called, noted) = (calls.clone(), before_steps.clone());
        worker.before_step = Some(Box::new(move || {
            noted.lock().unwrap().push(called.swap(0, Ordering::Relaxed));
        }));
        let request = Request { max_tokens: 20, ..request() };
        let sink = Box::new(FailureSink(Arc::default(), || {}));
        sender.send(insistent(sender.clone(), calls, 40)).unwrap();
        sender.send(Command::Submit(Pending::new(Submission { request, guide: None, sink }))).unwrap();
        drop(sender);
        worker.run();
        let before_steps = before_steps.lock().unwrap();
        assert!(before_steps.len() > 10 && before_steps.iter().all(|&calls| calls == 1), "{before_steps:?}");
    }

    /// The next step is slow: the answer to the call does not wait for it, and neither do events and statistics.
    #[test]
    fn a_call_is_answered_once_its_change_is_published() {
        let told: Arc<Mutex<Vec<KvEvent>>> = Arc::default();
        let sink = {
            let told = told.clone();
            Box::new(move |events| told.lock().unwrap().extend(events))
        };
        let attached = Attached {
            kv_listener: Some(KvListener { salts: vec![[0; 16]], sink }),
            before_step: Some(Box::new(|| std::thread::sleep(Duration::from_millis(50)))),
            ..Attached::default()
        };
        let runner = Box::new(ConstantRunner(None));
        let engine = Engine::start_with(runner, vocabulary(), cache(), config(), attached).unwrap();
        engine.generate(Request { max_tokens: 1, ..request() }).unwrap();
        assert!(matches!(told.lock().unwrap().last(), Some(KvEvent::Stored(_))));
        assert!(engine.clear_cache(None).unwrap().0 > 0);
        assert!(matches!(told.lock().unwrap().last(), Some(KvEvent::Removed(_))));
        assert_eq!(engine.stats().cache.free, 100);
        engine.shutdown(Duration::ZERO);
    }

    #[test]
    fn a_panic_in_a_call_between_steps_fails_that_call_only() {
        let engine = Engine::start(ConstantRunner(None), vocabulary(), cache(), config()).unwrap();
        let before = engine.generate(request()).unwrap();
        for _ in 0..3 {
            let error = engine.with_scheduler(|_| -> usize { panic!("it broke") }).unwrap_err();
            assert_eq!(error, RequestError::Internal("it broke".to_owned()));
        }
        let after = engine.generate(request()).unwrap();
        assert_eq!(after.choices, before.choices);
        assert_eq!(after.report.cached_tokens, 39, "the cache keeps what it held before");
        engine.shutdown(Duration::ZERO);
    }
}
