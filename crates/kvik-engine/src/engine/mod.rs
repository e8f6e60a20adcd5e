//! The engine's public handle: submit requests, read statistics, stop.

mod answers;
mod board;
mod fleet;
mod kept;
mod outline;
pub mod perplexity;
mod time_share;
mod trim;
mod worker;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SendError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use kvik_cache::retain::Retention;
use kvik_cache::{CacheConfig, CacheError};
use kvik_model::batch::Runner;
use kvik_model::pulse::{Life, Pulse};
use kvik_text::constraint::{CompilerPool, Guide, Waiter};
use kvik_text::stream::Vocabulary;

use crate::answers::{AnswerListener, GeneratedAnswers};
use crate::api::{
    CallStart, Constraint, ConstraintError, Event, EventSink, FinishReason, GeneratedToken, KvListener,
    Probe, Report, Request, RequestError,
};
use crate::config::usual::PARALLEL_MAX;
use crate::panics::contain;
use crate::schedule::disk::DiskSetup;
use crate::schedule::{DraftSetup, RequestLimits, Scheduler, Submission, TenantPart};
use crate::stats::EngineStats;
use crate::store::Waker;
use board::Board;
use time_share::Rests;
use worker::{Command, Pending, Reply, Worker};

pub use crate::config::EngineConfig;
pub use time_share::TimeShare;
pub use trim::{Flushed, Trimmed};

/// How long the end of an engine waits until its answers are on disk.
const ANSWERS_FLUSH_MAX: Duration = Duration::from_secs(2);

/// A running engine; a clone is another handle to the same one. When the last handle is dropped,
/// the engine finishes its requests and stops.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

struct Shared {
    /// Unbounded, but holds at most `waiting_max` submissions, the background submissions, a wake, and one command of
    /// each thread that waits for its result.
    commands: Sender<Command>,
    board: Board,
    /// Whether a wake is queued.
    woken: Arc<AtomicBool>,
    limits: RequestLimits,
    /// Compiles constraints.
    compilers: CompilerPool,
    /// The worker's current phase.
    pulse: Arc<Pulse>,
    /// The answers that were generated, where they are remembered.
    answers: Option<Arc<GeneratedAnswers>>,
    /// The file for them beside the disk: an earlier engine may have remembered what this one does not.
    left_answers: Option<PathBuf>,
    waiting_max: usize,
    parallel_max: usize,
    worker: Mutex<Option<JoinHandle<()>>>,
}

/// The result of [`Engine::generate`].
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// A result for each choice.
    pub choices: Vec<GeneratedChoice>,
    /// Token counts and times.
    pub report: Report,
}

/// The result of [`Engine::vector`].
#[derive(Debug, Clone, PartialEq)]
pub struct Vector {
    /// The embedding, `[d_model]`, not normalised; or the logits, in the order of their tokens.
    pub vector: Vec<f32>,
    /// Token counts and times.
    pub report: Report,
}

/// A finished choice.
#[derive(Debug, Clone, PartialEq)]
pub struct GeneratedChoice {
    /// Its text.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<GeneratedToken>,
    /// Why it ended.
    pub reason: FinishReason,
}

/// Optional parts of an engine in addition to its model.
#[derive(Default)]
pub struct Attached {
    /// A disk tier.
    pub disk: Option<DiskSetup>,
    /// Whether prompts that are texts get the tokens of answers in them as they were generated, see
    /// [`Engine::as_generated`].
    pub retokenise: bool,
    /// A smaller model that drafts.
    pub draft: Option<DraftSetup>,
    /// The share of time in which it computes.
    pub time_share: TimeShare,
    /// The receiver of events about the cache in memory.
    pub kv_listener: Option<KvListener>,
    /// Called on the engine's thread before each step: tests use it to delay the engine.
    pub before_step: Option<Box<dyn FnMut() + Send>>,
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
    /// More sequences are to be computed at the same time than a step may have.
    #[error("the number of parallel sequences must be at most {PARALLEL_MAX}, and not {parallel}")]
    Parallel {
        /// The number given.
        parallel: usize,
    },
    /// The share of time is out of range.
    #[error("the share of time in which to compute must be above 0 and at most 1, and not {share}")]
    TimeShare {
        /// The share given.
        share: f32,
    },
    /// The draft model keeps a recurrent state, which is not managed for drafts.
    #[error("the draft model keeps a recurrent state, and such models do not draft; choose one without")]
    RecurrentDraft,
    /// The settings contradict the size of the model's recurrent state.
    #[error("a state of the model takes {runner} bytes, and the settings say {settings}")]
    StateBytes {
        /// Bytes of a state of the model.
        runner: usize,
        /// The value of [`EngineConfig::auxiliary`].
        settings: usize,
    },
    /// The operating system refused a thread.
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
        Engine::start_with(Box::new(runner), vocabulary, cache, config, Attached::default())
    }

    /// Checks settings, before anything of their size is made.
    ///
    /// # Errors
    /// If one of them is 0 or too large.
    pub fn check_config(config: &EngineConfig) -> Result<(), StartError> {
        let settings = [
            ("the context", config.context_tokens),
            ("the number of parallel sequences", config.parallel_max),
            ("the length of the queue", config.waiting_max),
            ("the number of choices", config.choices_max as usize),
            ("the number of prefill rows", config.prefill_rows_max),
            ("the number of prefill rows beside decoding", config.prefill_rows_mixed_max),
        ];
        if let Some((setting, _)) = settings.into_iter().find(|(_, value)| *value == 0) {
            return Err(StartError::Zero { setting });
        }
        match config.parallel_max {
            0..=PARALLEL_MAX => Ok(()),
            parallel => Err(StartError::Parallel { parallel }),
        }
    }

    /// As [`Engine::start`], with optional parts.
    pub fn start_with(
        mut runner: Box<dyn Runner + Send>,
        vocabulary: impl Into<Vocabulary>,
        cache: CacheConfig,
        config: EngineConfig,
        attached: Attached,
    ) -> Result<Engine, StartError> {
        let Attached { disk, retokenise, draft, time_share, kv_listener, before_step } = attached;
        Engine::check_config(&config)?;
        check_states(runner.as_ref(), &config, draft.as_ref())?;
        let vocabulary = Arc::new(vocabulary.into());
        let vocab_len = runner.vocab_len();
        let limits = RequestLimits::new(&config, cache.blocks, vocab_len)
            .with_adapters(runner.adapters_len())
            .that_forget(runner.retainer().is_some());
        let (waiting_max, parallel_max, block_bytes) =
            (config.waiting_max, config.parallel_max, config.block_bytes);
        let left_answers = disk.as_ref().and_then(|disk| disk.store.answers());
        let answers = retokenise.then(|| answers::open(&vocabulary, &config, disk.as_ref())).transpose()?;
        let started = Instant::now();
        let clock = Box::new(move || started.elapsed());
        let mut scheduler = Scheduler::new(config, cache, vocabulary.clone(), clock)?;
        let kv_sink = kv_listener.map(|KvListener { salts, sink }| {
            scheduler.prefixes.tell(salts);
            sink
        });
        let waker = disk.map(|disk| attach_disk(disk, &mut scheduler));
        scheduler.follow_wall_clock(Box::new(unix_seconds));
        if let Some(draft) = draft {
            scheduler.attach_draft(draft)?;
        }
        let pulse = scheduler.pulse().clone();
        runner.set_pulse(pulse.clone());
        let (commands, receiver) = channel();
        let (board, woken) = (Board::new(&scheduler, block_bytes), Arc::<AtomicBool>::default());
        let worker = Worker {
            scheduler,
            runner,
            limits: limits.clone(),
            commands: receiver,
            board: board.clone(),
            woken: woken.clone(),
            deadline: None,
            pulse: pulse.clone(),
            started,
            rests: Rests::new(time_share),
            answers: answers.as_ref().map(Arc::downgrade).unwrap_or_default(),
            kv_sink,
            before_step,
        };
        let worker = Mutex::new(Some(spawned(worker)?));
        let compilers = CompilerPool::of(vocabulary, vocab_len);
        let shared = Arc::new(Shared {
            commands,
            board,
            woken,
            limits,
            compilers,
            pulse,
            answers,
            left_answers,
            waiting_max,
            parallel_max,
            worker,
        });
        if let Some(waker) = waker {
            let shared = Arc::downgrade(&shared);
            waker.listen(move || wake(&shared));
        }
        Ok(Engine { shared })
    }

    /// Queues a request. `sink` receives its events, until `Done` or `Failed`.
    ///
    /// A constraint is compiled on another thread; an invalid one fails the request. A background request takes no slot
    /// in the queue and is not refused when that is full: its submitter bounds how many there are.
    pub fn submit(&self, mut request: Request, sink: Box<dyn EventSink>) -> Result<(), RequestError> {
        let shared = &self.shared;
        shared.limits.check(&request)?;
        self.as_generated(&mut request);
        let sink = match &shared.answers {
            Some(answers) => AnswerListener::before(sink, &request, answers),
            None => sink,
        };
        let slot = if request.background.is_some() { shared.free_slot() } else { shared.take_slot()? };
        let Some(constraint) = request.constraint.clone() else {
            let sent = slot.submit(Submission { request, guide: None, sink });
            return sent.map_err(|refused| {
                // The caller gets the error; the sink need not get it too.
                drop(refused.take());
                RequestError::Stopping
            });
        };
        let tenant = request.tenant;
        Ok(shared.compilers.compile(tenant, &constraint, Box::new(Uncompiled { request, sink, slot }))?)
    }

    /// Returns the error with which [`submit`](Engine::submit) would reject the request itself, whatever else runs.
    pub fn check(&self, request: &Request) -> Result<(), RequestError> {
        self.shared.limits.check(request)
    }

    /// Statistics as of the last step.
    pub fn stats(&self) -> EngineStats {
        let board = &self.shared.board;
        EngineStats { waiting: board.waiting(), ..board.snapshot().stats }
    }

    /// The current phase of the engine's thread, and its age. Never waits: it serves to detect that the engine is
    /// stuck.
    pub fn life(&self) -> Life {
        self.shared.pulse.life()
    }

    /// The match that `request` would find in the cache if it were admitted now, and why it is not longer. Computes
    /// nothing and changes nothing, not even recency, except that expired blocks are evicted as in every step.
    ///
    /// Refuses requests that [`submit`](Engine::submit) would refuse for their length or tokens. Waits
    /// for the running step to end.
    pub fn explain(&self, mut request: Request) -> Result<Probe, RequestError> {
        self.shared.limits.check(&request)?;
        self.as_generated(&mut request);
        self.with_scheduler(move |scheduler| scheduler.probe(&request))
    }

    /// Runs `action` on the engine's thread between two steps and waits for its result. A panic in it
    /// fails this call only.
    pub(crate) fn with_scheduler<T: Send + 'static>(
        &self,
        action: impl FnOnce(&mut Scheduler) -> T + Send + 'static,
    ) -> Result<T, RequestError> {
        self.with_runner(move |scheduler, _| action(scheduler))
    }

    /// As [`with_scheduler`](Engine::with_scheduler), with access to the runner.
    pub(crate) fn with_runner<T: Send + 'static>(
        &self,
        action: impl FnOnce(&mut Scheduler, &mut dyn Runner) -> T + Send + 'static,
    ) -> Result<T, RequestError> {
        let (sender, receiver) = channel();
        let call = move |scheduler: &mut Scheduler, runner: &mut dyn Runner| -> Reply {
            let result = contain(|| action(scheduler, runner));
            if let Err(error) = &result {
                tracing::error!("a call between two steps panicked: {error}");
                scheduler.recover_if_broken(error);
            }
            // The caller may have been cancelled meanwhile.
            Box::new(move || drop(sender.send(result)))
        };
        let sent = self.shared.commands.send(Command::Call(Box::new(call)));
        sent.ok().and_then(|()| receiver.recv().ok()).unwrap_or(Err(RequestError::Stopping))
    }

    /// Sets the shares of tenants in the model, the cache and the disk; other tenants have weight 1. A lowered
    /// quota is kept at once in RAM, and on disk by evicting a few blocks in every step, also without requests.
    pub fn set_tenants(&self, parts: Vec<TenantPart>) -> Result<(), RequestError> {
        if let Some(answers) = &self.shared.answers {
            let without_disk = parts.iter().filter(|part| part.owner_disk_bytes == Some(0));
            answers.keep_in_memory(without_disk.map(|part| part.salt));
        }
        self.with_scheduler(move |scheduler| scheduler.set_tenants(&parts))
    }

    /// Compresses, in idle time, prefixes that are used often or are about to be evicted, with the policy `retention`;
    /// `None` stops it. Requests that allow it read the result, see [`Request::kept_prefix`].
    pub fn set_retain_idle(&self, retention: Option<Retention>) -> Result<(), RequestError> {
        self.with_scheduler(move |scheduler| scheduler.set_retain_idle(retention))
    }

    /// Refuses new and queued requests, gives running ones at most `grace` to end, fails the others
    /// with [`RequestError::Stopping`], and returns when the engine has stopped.
    pub fn shutdown(&self, grace: Duration) {
        // A send that fails means that the engine has stopped already.
        let _ = self.shared.commands.send(Command::Shutdown { grace });
        let worker = self.shared.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(worker) = worker
            && worker.join().is_err()
        {
            tracing::error!("the engine's thread panicked");
        }
        self.flush_answers(ANSWERS_FLUSH_MAX);
    }

    /// Submits a request and waits for its end.
    pub fn generate(&self, request: Request) -> Result<Generated, RequestError> {
        let (sender, events) = channel();
        let mut texts = vec![(String::new(), Vec::new(), None); request.choices as usize];
        self.submit(request, Box::new(ChannelSink(sender)))?;
        for event in events {
            match event {
                Event::Unconstrained(_) | Event::Prefill { .. } | Event::Vector(_) => {}
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

    /// Submits a request for an embedding or logits, and waits for its end. For a request that wants text the vector is
    /// empty.
    pub fn vector(&self, request: Request) -> Result<Vector, RequestError> {
        let (sender, events) = channel();
        self.submit(request, Box::new(ChannelSink(sender)))?;
        let mut vector = Vec::new();
        for event in events {
            match event {
                Event::Vector(values) => vector = values,
                Event::Done(report) => return Ok(Vector { vector, report }),
                Event::Failed(error) => return Err(error),
                Event::Unconstrained(_)
                | Event::Prefill { .. }
                | Event::Text { .. }
                | Event::Finished { .. } => {}
            }
        }
        Err(RequestError::Internal("the engine stopped without an answer".to_owned()))
    }
}

impl Shared {
    /// Takes an admission slot of the queue, if one is free.
    fn take_slot(self: &Arc<Self>) -> Result<AdmissionSlot, RequestError> {
        let Board { accepted, departed, .. } = &self.board;
        let max = self.waiting_max as u64;
        let free = |accepted: u64| {
            let waiting = accepted.saturating_sub(departed.load(Ordering::Acquire));
            (waiting < max).then_some(accepted + 1)
        };
        let taken = accepted.fetch_update(Ordering::AcqRel, Ordering::Acquire, free);
        let slot = |_| AdmissionSlot { shared: Some(self.clone()), is_counted: true };
        taken.map(slot).map_err(|_| self.queue_full())
    }

    /// An admission slot that does not count towards the queue's limit.
    fn free_slot(self: &Arc<Self>) -> AdmissionSlot {
        AdmissionSlot { shared: Some(self.clone()), is_counted: false }
    }

    /// The error that says when to retry: by then the requests that wait now should have been admitted.
    fn queue_full(&self) -> RequestError {
        let waiting = self.board.waiting();
        let service = self.board.snapshot().service.unwrap_or(Duration::from_secs(1));
        let seconds = service.as_secs_f64() * waiting as f64 / self.parallel_max as f64;
        RequestError::QueueFull { waiting, retry_after_s: seconds.ceil().clamp(1.0, 600.0) as u64 }
    }
}

/// A slot in the queue; dropping it frees the slot.
struct AdmissionSlot {
    shared: Option<Arc<Shared>>,
    /// True if it counts towards the queue's limit.
    is_counted: bool,
}

impl AdmissionSlot {
    /// Sends the submission to the worker, which frees the slot when the request leaves the queue. Returns
    /// the submission if the worker has stopped.
    fn submit(mut self, submission: Submission) -> Result<(), Pending> {
        let pending = Pending::new(submission);
        let Some(shared) = self.shared.take() else { return Err(pending) };
        shared.commands.send(Command::Submit(pending)).map_err(|SendError(command)| {
            self.shared = Some(shared.clone());
            if let Command::Submit(pending) = command { pending } else { unreachable!("it was a submission") }
        })
    }
}

impl Drop for AdmissionSlot {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.as_ref().filter(|_| self.is_counted) {
            shared.board.accepted.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Attaches a disk; returns what is woken when it has completed something.
fn attach_disk(disk: DiskSetup, scheduler: &mut Scheduler) -> Waker {
    let waker = disk.waker.clone();
    scheduler.attach(disk);
    waker
}

/// Seconds since 1970.
fn unix_seconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Starts the thread of an engine, as one of those that compute.
fn spawned(worker: Worker) -> std::io::Result<JoinHandle<()>> {
    let pool = worker.runner.threads();
    let thread = std::thread::Builder::new().name("kvik-engine".to_owned());
    thread.spawn(move || {
        pool.iter().for_each(|pool| pool.keep_caller());
        worker.run();
    })
}

/// Whether the constraint only guides tool calls that the model starts by itself, without the request having required
/// it.
fn is_optional_guide(request: &Request) -> bool {
    let Some(Constraint::Calls(calls)) = &request.constraint else { return false };
    matches!(calls.start, CallStart::Lazy { .. } | CallStart::LazyAtStart)
}

/// A request that waits for its constraint.
struct Uncompiled {
    request: Request,
    sink: Box<dyn EventSink>,
    slot: AdmissionSlot,
}

impl Waiter for Uncompiled {
    fn is_closed(&self) -> bool {
        self.sink.is_closed()
    }

    fn done(self: Box<Self>, guide: Result<Guide, ConstraintError>) {
        let Uncompiled { request, mut sink, slot } = *self;
        match guide {
            // Dropping a submission that the worker did not take notifies its sink.
            Ok(guide) => drop(slot.submit(Submission { request, guide: Some(guide), sink })),
            // The request did not require the form of calls, so the model generates without it. Whoever reads the answer
            // must know before its first token: text that begins like a call may be none.
            Err(error @ (ConstraintError::Unusable(_) | ConstraintError::NoGrammars))
                if is_optional_guide(&request) =>
            {
                sink.send(Event::Unconstrained(error));
                drop(slot.submit(Submission { request, guide: None, sink }));
            }
            Err(error) => {
                // A client that receives the failure may retry at once and needs the slot.
                drop(slot);
                sink.send(Event::Failed(error.into()));
            }
        }
    }
}

/// Wakes a sleeping engine to collect completions of the disk; does nothing after the engine was dropped.
fn wake(engine: &Weak<Shared>) {
    if let Some(shared) = engine.upgrade()
        && !shared.woken.swap(true, Ordering::AcqRel)
    {
        // A send that fails means that the engine has stopped.
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
        // `generate` holds the receiver until the request has ended.
        false
    }
}

/// Checks that the settings match the model's states, and that the draft model has none.
fn check_states(
    runner: &dyn Runner,
    config: &EngineConfig,
    draft: Option<&DraftSetup>,
) -> Result<(), StartError> {
    let (bytes, settings) = (runner.state_bytes(), config.auxiliary.state_bytes);
    match draft {
        Some(draft) if draft.runner.state_bytes() > 0 => Err(StartError::RecurrentDraft),
        _ if bytes != settings => Err(StartError::StateBytes { runner: bytes, settings }),
        _ => Ok(()),
    }
}
