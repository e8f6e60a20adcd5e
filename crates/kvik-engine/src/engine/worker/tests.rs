//! Commands between steps, on the engine's thread, with a model that always generates the same token.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::mpsc::{Sender, channel};

use kvik_cache::{BlockId, CacheConfig, Lifetime, Policy};

use super::*;
use crate::api::{EventSink, KvListener, PinnedPrompt, Request};
use crate::config::EngineConfig;
use crate::engine::{Attached, Engine, TimeShare};
use crate::schedule::Clock;
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
    worker_by(Box::new(|| Duration::ZERO), runner, commands)
}

fn worker_by(clock: Clock, runner: ConstantRunner, commands: Receiver<Command>) -> Worker {
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
        answers: Weak::new(),
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
    assert_eq!(*last.lock().unwrap(), Some(RequestError::Stopping), "also after a command of another kind");
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

/// An idle engine makes no step.
#[test]
fn a_call_finds_nothing_that_has_outlived_its_time() {
    let now_s = Arc::<AtomicU64>::default();
    let shown_s = now_s.clone();
    let clock = Box::new(move || Duration::from_secs(shown_s.load(Ordering::Relaxed)));
    let mut worker = worker_by(clock, ConstantRunner(None), channel().1);
    let lifetime = Lifetime { ttl: Some(Duration::from_secs(60)), ..Lifetime::default() };
    let request = Request { max_tokens: 1, lifetime, ..request() };
    let sink = Box::new(FailureSink(Arc::default(), || {}));
    worker.execute(Command::Submit(Pending::new(Submission { request, guide: None, sink })));
    while !worker.scheduler.is_idle() {
        worker.step();
        worker.scheduler.notify_finished();
    }
    for (at_s, expected) in [(59, 40), (60, 0)] {
        now_s.store(at_s, Ordering::Relaxed);
        let (found, tokens) = channel();
        worker.execute(Command::Call(Box::new(move |scheduler, _| {
            found.send(scheduler.cache().stats().tokens).unwrap();
            Box::new(|| {})
        })));
        assert_eq!(tokens.recv(), Ok(expected), "after {at_s} s");
    }
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
