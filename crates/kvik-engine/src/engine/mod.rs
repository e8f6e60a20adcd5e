//! The engine as its users see it: submit requests, read numbers, stop.

mod board;
mod kept;
pub mod perplexity;
mod worker;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SendError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvik_cache::{CacheConfig, CacheError};

use crate::api::{
    CallStart, Constraint, Event, EventSink, FinishReason, GeneratedToken, Probe, Report, Request,
    RequestError,
};
use crate::model::batch::Runner;
use crate::panics::contain;
use crate::schedule::disk::DiskSetup;
use crate::schedule::{Limits, Scheduler, Submission, TenantPart};
use crate::stats::EngineStats;
use crate::text::constraint::{Compiler, Guide, Pool, Waiter};
use crate::text::stream::Vocabulary;
use board::Board;
use worker::{Command, Pending, Worker};

pub use crate::config::EngineConfig;

/// A running engine; a clone is another handle to the same one. When the last handle is gone,
/// it finishes what it has and stops.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

struct Shared {
    /// Unbounded, but never full of more than `waiting_max` submissions, a wake, and a command of each
    /// thread that waits for its answer.
    commands: Sender<Command>,
    board: Board,
    /// Whether a wake is on its way.
    woken: Arc<AtomicBool>,
    limits: Limits,
    /// Compiles constraints.
    pool: Pool,
    waiting_max: usize,
    parallel_max: usize,
    worker: Mutex<Option<JoinHandle<()>>>,
}

/// What [`Engine::generate`] collects.
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// One for each choice.
    pub choices: Vec<GeneratedChoice>,
    /// What was computed.
    pub report: Report,
}

/// One finished choice.
#[derive(Debug, Clone, PartialEq)]
pub struct GeneratedChoice {
    /// Its text.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<GeneratedToken>,
    /// Why it ended.
    pub reason: FinishReason,
}

/// The engine cannot be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The cache's settings are not usable.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A setting is not usable.
    #[error("{setting} must be at least 1")]
    Zero {
        /// Its name.
        setting: &'static str,
    },
    /// The operating system gave no thread.
    #[error("the engine's thread cannot be started: {0}")]
    Thread(#[from] std::io::Error),
}

impl Engine {
    /// Starts the thread that serves requests.
    ///
    /// `runner` must own storage for as many blocks as `cache` has, and take batches of
    /// [`EngineConfig::batch_rows_max`] rows.
    pub fn start(
        runner: impl Runner + Send + 'static,
        vocabulary: impl Into<Vocabulary>,
        cache: CacheConfig,
        config: EngineConfig,
    ) -> Result<Engine, StartError> {
        Engine::start_with_disk(runner, vocabulary, cache, config, None)
    }

    /// As [`Engine::start`], with a tier below RAM.
    pub fn start_with_disk(
        runner: impl Runner + Send + 'static,
        vocabulary: impl Into<Vocabulary>,
        cache: CacheConfig,
        config: EngineConfig,
        disk: Option<DiskSetup>,
    ) -> Result<Engine, StartError> {
        check(&config)?;
        let vocabulary = Arc::new(vocabulary.into());
        let vocab_len = runner.vocab_len();
        let limits = Limits::new(&config, cache.blocks, vocab_len);
        let (waiting_max, parallel_max, block_bytes) =
            (config.waiting_max, config.parallel_max, config.block_bytes);
        let started = Instant::now();
        let clock = Box::new(move || started.elapsed());
        let mut scheduler = Scheduler::new(config, cache, vocabulary.clone(), clock)?;
        let waker = disk.as_ref().map(|disk| disk.waker.clone());
        if let Some(disk) = disk {
            scheduler.attach(disk);
        }
        let (commands, receiver) = channel();
        let (board, woken) = (Board::new(&scheduler, block_bytes), Arc::<AtomicBool>::default());
        let worker = Worker {
            scheduler,
            runner: Box::new(runner),
            limits,
            commands: receiver,
            board: board.clone(),
            woken: woken.clone(),
            deadline: None,
        };
        let thread = std::thread::Builder::new().name("kvik-engine".to_owned());
        let worker = Mutex::new(Some(thread.spawn(move || worker.run())?));
        let pool = Pool::new(Compiler::new(vocabulary, vocab_len));
        let shared = Shared { commands, board, woken, limits, pool, waiting_max, parallel_max, worker };
        let shared = Arc::new(shared);
        if let Some(waker) = waker {
            let shared = Arc::downgrade(&shared);
            waker.listen(move || wake(&shared));
        }
        Ok(Engine { shared })
    }

    /// Puts a request into the queue. Its events go to `sink`, until `Done` or `Failed`.
    ///
    /// A constraint is compiled beside it: a bad one makes the request fail.
    pub fn submit(&self, request: Request, sink: Box<dyn EventSink>) -> Result<(), RequestError> {
        let shared = &self.shared;
        shared.limits.check(&request)?;
        let place = shared.take_place()?;
        let Some(constraint) = request.constraint.clone() else {
            let sent = place.keep(Submission { request, guide: None, sink });
            return sent.map_err(|refused| {
                // Who submits is told; its listener need not be as well.
                drop(refused.take());
                RequestError::Stopping
            });
        };
        let tenant = request.tenant;
        shared.pool.compile(tenant, &constraint, Box::new(Uncompiled { request, sink, place }))
    }

    /// Numbers, as of the last step.
    pub fn stats(&self) -> EngineStats {
        let board = &self.shared.board;
        EngineStats { waiting: board.waiting(), ..board.snapshot().stats }
    }

    /// What `request` would find in the cache if it were admitted now, and why not more. Runs
    /// nothing and changes nothing, not even recency.
    ///
    /// Refuses what [`submit`](Engine::submit) would refuse for its length or its tokens. Waits
    /// for the step that is running.
    pub fn explain(&self, request: Request) -> Result<Probe, RequestError> {
        self.shared.limits.check(&request)?;
        self.ask(move |scheduler| scheduler.probe(&request))
    }

    /// Lets the engine's thread do something between two steps and waits for what it gives. A panic in that
    /// is an error for who asked, and nobody else's.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut Scheduler) -> T + Send + 'static,
    ) -> Result<T, RequestError> {
        let (answer, answered) = channel();
        let ask = move |scheduler: &mut Scheduler| {
            let given = contain(|| ask(scheduler));
            if let Err(error) = &given {
                tracing::error!("a look into the engine panicked: {error}");
                scheduler.mistrust(error);
            }
            // Whoever asked may have gone meanwhile.
            let _ = answer.send(given);
        };
        let sent = self.shared.commands.send(Command::Ask(Box::new(ask)));
        sent.ok().and_then(|()| answered.recv().ok()).unwrap_or(Err(RequestError::Stopping))
    }

    /// From now on tenants share the model, the cache and the disk like this; others have the weight
    /// 1. What they keep follows with their next request.
    pub fn set_tenants(&self, parts: Vec<TenantPart>) -> Result<(), RequestError> {
        self.ask(move |scheduler| scheduler.set_tenants(&parts))
    }

    /// Refuses new and queued requests, lets running ones end for at most `grace`, fails the rest
    /// with [`RequestError::Stopping`], and returns when the engine has stopped.
    pub fn shutdown(&self, grace: Duration) {
        // Nobody left to tell means that it has stopped already.
        let _ = self.shared.commands.send(Command::Shutdown { grace });
        let worker = self.shared.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(worker) = worker
            && worker.join().is_err()
        {
            tracing::error!("the engine's thread panicked");
        }
    }

    /// Submits a request and waits for its end.
    pub fn generate(&self, request: Request) -> Result<Generated, RequestError> {
        let (sender, events) = channel();
        let mut texts = vec![(String::new(), Vec::new(), None); request.choices as usize];
        self.submit(request, Box::new(ChannelSink(sender)))?;
        for event in events {
            match event {
                Event::Prefill { .. } => {}
                Event::Text { choice, text, tokens } => {
                    let (all, all_tokens, _) = &mut texts[choice as usize];
                    all.push_str(&text);
                    all_tokens.extend(tokens);
                }
                Event::Finished { choice, reason } => texts[choice as usize].2 = Some(reason),
                Event::Done(report) => {
                    let choice = |(text, tokens, reason): (_, _, Option<_>)| {
                        let reason = reason.expect("every choice ends before the request does");
                        GeneratedChoice { text, tokens, reason }
                    };
                    return Ok(Generated { choices: texts.into_iter().map(choice).collect(), report });
                }
                Event::Failed(error) => return Err(error),
            }
        }
        Err(RequestError::Internal("the engine stopped without an answer".to_owned()))
    }
}

impl Shared {
    /// Takes one of the queue's places, if there is one.
    fn take_place(self: &Arc<Self>) -> Result<Place, RequestError> {
        let Board { accepted, departed, .. } = &self.board;
        let max = self.waiting_max as u64;
        let free = |accepted: u64| {
            let waiting = accepted.saturating_sub(departed.load(Ordering::Acquire));
            (waiting < max).then_some(accepted + 1)
        };
        let taken = accepted.fetch_update(Ordering::AcqRel, Ordering::Acquire, free);
        taken.map(|_| Place { shared: Some(self.clone()) }).map_err(|_| self.queue_full())
    }

    /// When to try again: by then those who wait now should have been admitted.
    fn queue_full(&self) -> RequestError {
        let waiting = self.board.waiting();
        let service = self.board.snapshot().service.unwrap_or(Duration::from_secs(1));
        let seconds = service.as_secs_f64() * waiting as f64 / self.parallel_max as f64;
        RequestError::QueueFull { waiting, retry_after_s: seconds.ceil().clamp(1.0, 600.0) as u64 }
    }
}

/// A place in the queue; given back when it is dropped.
struct Place {
    shared: Option<Arc<Shared>>,
}

impl Place {
    /// Tells the worker, which gives the place back when the request leaves the queue. A worker
    /// that has stopped takes nothing.
    fn keep(mut self, submission: Submission) -> Result<(), Pending> {
        let pending = Pending::new(submission);
        let Some(shared) = self.shared.take() else { return Err(pending) };
        shared.commands.send(Command::Submit(pending)).map_err(|SendError(command)| {
            self.shared = Some(shared.clone());
            if let Command::Submit(pending) = command { pending } else { unreachable!("it was a submission") }
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.board.accepted.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Whether the constraint is there to help the model where it makes calls, and the request did not ask
/// for it.
fn helps_only(request: &Request) -> bool {
    let Some(Constraint::Calls(calls)) = &request.constraint else { return false };
    matches!(calls.start, CallStart::Lazy { .. } | CallStart::LazyAtStart { .. })
}

/// A request that waits for its constraint.
struct Uncompiled {
    request: Request,
    sink: Box<dyn EventSink>,
    place: Place,
}

impl Waiter for Uncompiled {
    fn is_closed(&self) -> bool {
        self.sink.is_closed()
    }

    fn done(self: Box<Self>, guide: Result<Guide, RequestError>) {
        let Uncompiled { request, mut sink, place } = *self;
        match guide {
            // A submission that the worker does not take tells its listener when it is dropped.
            Ok(guide) => drop(place.keep(Submission { request, guide: Some(guide), sink })),
            // Nobody asked for calls in a form; the model is not held to it then.
            Err(RequestError::BadConstraint(_)) if helps_only(&request) => {
                drop(place.keep(Submission { request, guide: None, sink }));
            }
            Err(error) => {
                // Whoever hears of the failure may come back at once.
                drop(place);
                sink.send(Event::Failed(error));
            }
        }
    }
}

/// Lets a resting engine look whether the disk has done something; it may be gone.
fn wake(engine: &Weak<Shared>) {
    if let Some(shared) = engine.upgrade()
        && !shared.woken.swap(true, Ordering::AcqRel)
    {
        // Nobody left to tell means that it has stopped.
        let _ = shared.commands.send(Command::Wake);
    }
}

/// Sends events to a waiting thread.
struct ChannelSink(Sender<Event>);

impl EventSink for ChannelSink {
    fn send(&mut self, event: Event) -> bool {
        self.0.send(event).is_ok()
    }

    fn is_closed(&self) -> bool {
        // The receiver lives as long as `generate` waits, which is until the end.
        false
    }
}

fn check(config: &EngineConfig) -> Result<(), StartError> {
    let settings = [
        ("the context", config.context_tokens),
        ("the number of parallel sequences", config.parallel_max),
        ("the length of the queue", config.waiting_max),
        ("the number of choices", config.choices_max as usize),
        ("the number of prefill rows", config.prefill_rows_max),
        ("the number of prefill rows beside decoding", config.prefill_rows_mixed_max),
    ];
    let zero = settings.iter().find(|(_, value)| *value == 0);
    zero.map_or(Ok(()), |(setting, _)| Err(StartError::Zero { setting }))
}
