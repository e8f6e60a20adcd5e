//! Decides what the model computes next, and distributes the results.
//!
//! ```text
//! submit -> waiting -> running -> ended       a sequence; a request has one per choice
//!              ^----------'  preempted        its blocks stay in the cache as long as they can
//! ```
//!
//! A sequence is its tokens and the number of them that are stored in blocks; the rest is still to be computed. So
//! prefill, decode and resuming after a preemption are one case: decode means that a single token is left. The
//! scheduler knows no model, reads the time only from the clock it is given, and starts no thread.
//!
//! ```text
//!                     Scheduler          owns the parts; a step plans, computes and publishes
//!                         │
//!   submission  admission  growth  pressure  forgetting  background  compute  tiers  end  kept  idle  probe  unused  fleet     steps across parts
//!                         │
//!   queue     running     turns      results     tenants     disk     ram      kept_parts     parts, with their state
//!   waiting   sequences   virtual    requests,   parts,      slots,   cache,   retained positions
//!   sequences with blocks times      counters    namespaces  loads    names    of prefixes
//!                         │
//!   sequence   forget   answer   voice   pooled   job   prefix   limits   namespaces   cost   mixed    data
//! ```
//!
//! A part imports only what is drawn below it, and never the scheduler. Decisions are pure functions: `plan` (how the
//! rows of a step are divided), `reuse` (how much of a sequence is already computed), and the queue's candidates (which
//! sequence is admitted next). `watching` holds the observations of running sequences while a plan is computed.

mod admission;
mod answer;
mod background;
mod compute;
mod cost;
mod deleted;
pub mod disk;
mod draft;
mod drafting;
mod end;
mod fleet;
mod forget;
mod forgetting;
mod growth;
mod idle;
mod job;
mod kept;
mod kept_parts;
mod kept_prefix;
mod limits;
mod mixed;
mod namespaces;
mod outline;
mod plan;
mod pooled;
pub mod prefix;
mod pressure;
mod probe;
mod queue;
mod ram;
mod results;
mod reuse;
mod running;
mod sampling;
mod sequence;
mod submission;
mod telling;
mod tenants;
mod tiers;
mod trim;
mod turns;
mod unused;
mod watching;

use std::sync::Arc;
use std::time::Duration;

use kvik_cache::{Cache, CacheConfig, CacheError};
use kvik_model::batch::Runner;
use kvik_model::pulse::{Phase, Pulse};
use kvik_text::stream::Vocabulary;

use crate::config::EngineConfig;
use crate::stats::{Counters, DiskStats, DraftSource, RemoteStats};
use background::BackgroundShare;
use disk::{Disk, DiskSetup, Fetch};
use draft::{DraftModel, Drafting};
use idle::Idle;
use kept_parts::CompressedPrefixes;
use mixed::MixedRows;
use plan::{Budgets, Plan, divide_rows};
use queue::Queue;
use ram::Ram;
use results::Results;
use running::Running;
use sequence::Sequence;
use tenants::Tenants;
use turns::Turns;
use unused::Unused;

pub use draft::DraftSetup;
pub(crate) use fleet::SharedWork;
pub use limits::{RequestLimits, Submission};
pub(crate) use outline::Describing;
pub use tenants::TenantPart;

/// Returns the time since a fixed moment.
pub type Clock = Box<dyn Fn() -> Duration + Send>;

/// Schedules the requests of one model.
pub struct Scheduler {
    config: EngineConfig,
    clock: Clock,
    /// Sequences without blocks.
    queue: Queue,
    /// Sequences with blocks.
    running: Running,
    /// Virtual times, which decide which tenant is next.
    turns: Turns,
    /// The requests of all sequences.
    results: Results,
    tenants: Tenants,
    ram: Ram,
    /// Retained positions of prefixes.
    kept_parts: CompressedPrefixes,
    idle: Idle,
    unused: Unused,
    /// The disk tier; without slots when no disk is configured.
    disk: Disk,
    drafting: Drafting,
    /// The background's share of each step.
    background: BackgroundShare,
    /// The prompts' share of steps in which others decode.
    mixed: MixedRows,
    /// A smaller model that drafts, if configured.
    draft_model: Option<DraftModel>,
    /// The phase of the current step, for observers of the engine.
    pulse: Arc<Pulse>,
}

/// How long the scheduler may sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// There is something to compute.
    None,
    /// There is nothing to do until this time has passed or the disk has completed an operation.
    For(Duration),
    /// There is nothing to do until a command arrives.
    Forever,
}

impl Scheduler {
    /// A scheduler with an empty cache and without a disk.
    pub fn new(
        config: EngineConfig,
        cache_config: CacheConfig,
        vocabulary: Arc<Vocabulary>,
        clock: Clock,
    ) -> Result<Scheduler, CacheError> {
        Ok(Scheduler {
            queue: Queue::default(),
            running: Running::default(),
            turns: Turns::default(),
            results: Results::new(vocabulary),
            tenants: Tenants::new(&config),
            ram: Ram::new(cache_config, config.auxiliary, config.drafts_from(DraftSource::Tree))?,
            kept_parts: CompressedPrefixes::default(),
            unused: Unused::default(),
            idle: Idle::default(),
            disk: Disk::new(DiskSetup::none(), config.auxiliary),
            drafting: Drafting::default(),
            background: BackgroundShare::default(),
            mixed: MixedRows::default(),
            draft_model: None,
            pulse: Arc::default(),
            config,
            clock,
        })
    }

    /// Runs one step: decides which rows to compute, computes them, and publishes what has ended.
    pub fn step(&mut self, runner: &mut dyn Runner) {
        let started = self.now();
        self.pulse.enter(Phase::Plan);
        let plan = self.plan(runner);
        let computes = !plan.is_empty();
        plan.note_overtaken(&mut self.running);
        self.pulse.enter(Phase::Compute);
        self.compute(plan, runner);
        self.pulse.enter(Phase::Publish);
        self.publish(runner);
        if let Some(fault) = runner.fault() {
            self.restore(&fault, runner);
        }
        if computes {
            self.results.counters.step_time += self.now().saturating_sub(started);
        }
    }

    /// A step that computes nothing: ends requests whose clients have gone, and continues disk transfers.
    pub fn attend(&mut self, runner: &mut dyn Runner) {
        self.pulse.enter(Phase::Publish);
        self.ram.cache.set_now(self.now());
        self.drop_closed();
        self.collect_loads(runner);
        self.publish(runner);
    }

    /// Decides which sequences run and chooses the rows of this step.
    fn plan(&mut self, runner: &mut dyn Runner) -> Plan {
        self.ram.cache.set_now(self.now());
        self.drop_closed();
        self.use_idle_time(runner);
        self.collect_loads(runner);
        self.look_ahead();
        self.start_forks(runner);
        self.tighten();
        self.forget(runner);
        self.grow_and_admit(runner);
        self.end_stored();
        let mut rows = divide_rows(&self.running, &self.turns, self.budgets());
        let mut drafts = self.draft(&rows);
        if !self.running.iter().any(Sequence::is_suspect) {
            self.fill(&mut rows, &mut drafts);
        }
        Plan::new(&self.running, &rows, drafts, runner.chooses())
    }

    /// Prompt rows that this step may compute.
    fn budgets(&self) -> Budgets {
        let mixed_max = self.config.prefill_rows_mixed_max;
        let somebody_waits = !self.queue.foreground().is_empty();
        Budgets {
            alone: self.config.prefill_rows_max,
            mixed: self.mixed.rows(mixed_max, somebody_waits),
            background: self.background.alone(mixed_max),
            owed: self.background.own_step(&self.running),
        }
    }

    /// Spills computed blocks to disk, and ends the sequences and requests that are done.
    fn publish(&mut self, runner: &mut dyn Runner) {
        self.ram.settle(runner);
        self.spill(runner);
        self.leave_behind(runner);
        self.drop_ended();
        self.drop_retired();
        self.leave_ended();
        self.ram.settle(runner);
    }

    /// Frees the auxiliary state that running sequences no longer need, once the disk has a copy.
    fn leave_behind(&mut self, runner: &dyn Runner) {
        for sequence in self.running.iter() {
            self.ram.cache.advance(sequence.id, sequence.stored);
        }
        self.spill_states(runner);
    }

    /// Returns how long there is nothing to do unless an event arrives.
    pub fn next_pause(&self) -> Pause {
        let is_due = self.running.is_due() || self.results.has_finished();
        let waits = self.queue.fetches().filter_map(Fetch::until);
        let patience = waits.chain(self.disk.next_deadline()).min();
        let prefetches = self.disk.has_candidates() || self.disk.may_offer();
        let works = !self.is_idle() || self.has_idle_work();
        if is_due || (patience.is_none() && (prefetches || works)) {
            return Pause::None;
        }
        let copies = self.disk.next_copy_deadline();
        let next = patience.into_iter().chain(self.disk.next_expiry()).chain(copies).min();
        next.map_or(Pause::Forever, |next| Pause::For(next.saturating_sub(self.now())))
    }

    /// Notifies the requests that finished in the last step. A separate call, so that the statistics can be updated
    /// first: a client that has its answer finds it counted.
    pub fn notify_finished(&mut self) {
        self.results.notify_finished();
    }

    /// True if no request is open, background requests included; idle jobs do not count.
    pub fn is_idle(&self) -> bool {
        self.results.jobs().all(|(id, _)| self.idle.is_job(id))
    }

    /// The phase of the current step; the thread that runs the steps records the rest.
    pub fn pulse(&self) -> &Arc<Pulse> {
        &self.pulse
    }

    /// The cache, for inspection.
    pub fn cache(&self) -> &Cache {
        &self.ram.cache
    }

    /// Sequences that hold blocks.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Requests that were never admitted, except those of the background.
    pub fn queued(&self) -> usize {
        let foreground = self.queue.new_requests().filter(|sequence| !sequence.is_background());
        foreground.filter(|sequence| !self.idle.is_job(sequence.job)).count()
    }

    /// Counters since the start.
    pub fn counters(&self) -> &Counters {
        &self.results.counters
    }

    /// Mean time from admission to the end of a request; `None` until one has ended.
    pub fn mean_service(&self) -> Option<Duration> {
        self.results.mean_service()
    }

    /// Requests submitted so far, except idle jobs.
    pub fn submitted(&self) -> u64 {
        self.results.submitted() - self.idle.submitted
    }

    /// Statistics of the disk tier, if there is one.
    pub fn disk_stats(&self) -> Option<DiskStats> {
        self.disk.stats(self.config.block_bytes)
    }

    /// Statistics of the shared store, if there is one.
    pub fn remote_stats(&self) -> Option<RemoteStats> {
        self.disk.remote_stats()
    }

    pub(crate) fn now(&self) -> Duration {
        (self.clock)()
    }
}
