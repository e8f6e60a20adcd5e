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
//!   Scheduler        owns the parts, and names to each step those that it crosses
//!       │
//!   submission  admission  growth  pressure  forgetting  kept_prefix  drafting  compute      steps across parts
//!   start  tiers  idle  unused (these two with a state of their own)
//!       │
//!   jobs             prefixes           shares                                               parts, with their state
//!     queue            ram                drafting
//!     running          disk               background
//!     turns            tenants            mixed
//!     results          kept_parts
//!                      draft_model
//!       │
//!   sequence  forget  answer  sampling  pooled  job  prefix  limits  namespaces  cost        data
//! ```
//!
//! A part imports only what is drawn below it, and never the scheduler. A step across parts is a function over the parts
//! that it names: `jobs` where it moves sequences, `prefixes` where it moves blocks, one of their parts where that is
//! enough. Decisions are pure functions: `plan` (how the rows of a step are divided), `reuse` (how much of a sequence is
//! already computed), and the queue's candidates (which sequence is admitted next). `watching` holds the observations of
//! running sequences while a plan is computed.

mod admission;
mod answer;
mod background;
mod compute;
mod cost;
mod deleted;
pub mod disk;
mod draft;
mod drafting;
mod fleet;
mod forget;
mod forgetting;
mod growth;
mod idle;
mod job;
mod jobs;
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
mod prefixes;
mod pressure;
mod probe;
mod queue;
mod ram;
mod recovery;
mod results;
mod reuse;
mod running;
mod sampling;
mod sequence;
mod shares;
mod start;
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

use kvik_cache::retain::Retention;
use kvik_cache::{Cache, CacheConfig, CacheError};
use kvik_model::batch::Runner;
use kvik_model::pulse::{Phase, Pulse};
use kvik_text::constraint::Guide;
use kvik_text::stream::Vocabulary;

use crate::api::{Request, RequestError};
use crate::config::EngineConfig;
use crate::panics::contain;
use crate::stats::{Counters, DraftSource};
use disk::{DiskSetup, Fetch, WallClock};
use draft::DraftModel;
use idle::Idle;
use job::JobId;
use jobs::Jobs;
use plan::{Plan, divide_rows};
use sequence::Sequence;
use shares::RowShares;
use unused::Unused;

pub use draft::DraftSetup;
pub(crate) use fleet::SharedWork;
pub use limits::{RequestLimits, Submission};
pub(crate) use outline::Describing;
pub use prefixes::Prefixes;
pub use tenants::TenantPart;

/// Returns the time since a fixed moment.
pub type Clock = Box<dyn Fn() -> Duration + Send>;

/// Schedules the requests of one model.
pub struct Scheduler {
    config: EngineConfig,
    /// The requests that have not ended, and their sequences.
    jobs: Jobs,
    /// What is computed, in RAM and below.
    pub prefixes: Prefixes,
    /// How the rows of a step are divided.
    shares: RowShares,
    idle: Idle,
    unused: Unused,
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
            jobs: Jobs::new(config.parallel_max, vocabulary),
            prefixes: Prefixes::new(&config, cache_config, clock)?,
            shares: RowShares::default(),
            unused: Unused::default(),
            idle: Idle::default(),
            pulse: Arc::default(),
            config,
        })
    }

    /// Attaches the disk, and makes prefetch candidates of prefixes without a tenant; those of tenants follow when the
    /// tenants are registered.
    pub fn attach(&mut self, setup: DiskSetup) {
        self.prefixes.attach(setup, &self.config);
    }

    /// Adds a smaller model as a draft source.
    pub fn attach_draft(&mut self, mut setup: DraftSetup) -> Result<(), CacheError> {
        setup.runner.set_pulse(self.pulse.clone());
        self.prefixes.draft_model = Some(DraftModel::new(setup)?);
        Ok(())
    }

    /// Sets how tenants share the model, the cache and the disk; other tenants have weight 1. A lowered quota is kept at
    /// once in RAM, and on disk by the next steps; prefixes they used before the start are prefetched.
    pub fn set_tenants(&mut self, parts: &[TenantPart]) {
        self.jobs.turns.set_weights(parts.iter().map(|part| (part.tenant, part.weight)));
        self.prefixes.set_tenants(parts);
    }

    /// Sets the retention policy for compressing prefixes in idle time; `None` stops it.
    pub fn set_retain_idle(&mut self, retention: Option<Retention>) {
        self.drop_idle_job();
        self.idle.set_retention(retention.map(|retention| self.prefixes.of_prefix(&retention)));
    }

    /// Puts a request into the queue. It must be within `limits`. A panic in doing so fails the request.
    ///
    /// A background request ends idle time too: its answer is wanted, while what idle time computes may never be used.
    pub fn submit(&mut self, submission: Submission, limits: &RequestLimits) {
        self.drop_idle_job();
        let Submission { request, guide, sink } = submission;
        let now = self.now();
        let job = self.jobs.results.open(sink, request.prompt.len(), request.choices, now);
        if request.background.is_some() {
            self.jobs.results.set_background(job);
        }
        if let Err(error) = contain(|| self.enqueue(job, request, guide, limits)) {
            self.jobs.fail(job, error.clone(), &mut self.prefixes.ram.cache);
            self.recover_if_broken(&error);
        }
    }

    fn enqueue(&mut self, job: JobId, request: Request, guide: Option<Guide>, limits: &RequestLimits) {
        let Scheduler { config, jobs, prefixes, idle, unused, .. } = self;
        unused.drop_namespaces(jobs, prefixes, idle);
        submission::enqueue(job, request, guide, limits, jobs, prefixes, config);
    }

    /// Drops the idle job, because there is something else to do.
    fn drop_idle_job(&mut self) {
        self.idle.drop_job(&mut self.jobs, &mut self.prefixes.ram.cache);
    }

    /// Runs one step: decides which rows to compute, computes them, and publishes what has ended.
    pub fn step(&mut self, runner: &mut dyn Runner) {
        let started = self.now();
        let plan = self.plan(runner);
        let computes = self.compute(plan, runner);
        self.publish(runner);
        self.end_step(computes.then_some(started), runner);
    }

    /// A step that computes nothing: ends requests whose clients have gone, and continues disk transfers.
    pub fn attend(&mut self, runner: &mut dyn Runner) {
        self.pulse.enter(Phase::Publish);
        self.begin_step();
        tiers::collect_loads(&mut self.jobs, &mut self.prefixes, runner);
        self.publish(runner);
    }

    fn begin_step(&mut self) {
        let now = self.prefixes.keep_time();
        self.jobs.cancel_closed(now, &mut self.prefixes.ram.cache);
    }

    /// Drops from memory what has outlived its time. To be called before the cache is asked something between two steps.
    pub(crate) fn keep_time(&mut self) {
        self.prefixes.keep_time();
    }

    /// Has times to live go on while the machine sleeps, by a wall clock. If there is a disk, its setup names the clock.
    pub fn follow_wall_clock(&mut self, wall: WallClock) {
        self.prefixes.disk.set_wall_clock(wall);
    }

    /// Decides which sequences run and chooses the rows of this step.
    fn plan(&mut self, runner: &mut dyn Runner) -> Plan {
        self.pulse.enter(Phase::Plan);
        self.begin_step();
        self.use_idle_time(runner);
        let Scheduler { config, jobs, prefixes, shares, .. } = self;
        tiers::collect_loads(jobs, prefixes, runner);
        tiers::look_ahead(jobs, prefixes);
        growth::start_forks(jobs, prefixes, runner);
        pressure::tighten(jobs, prefixes);
        forgetting::forget(jobs, prefixes, config, runner);
        let lacks_room = admission::grow_and_admit(jobs, prefixes, runner);
        let now = prefixes.now();
        compute::end_stored(jobs, &mut prefixes.ram.cache, now);
        let Jobs { running, turns, .. } = jobs;
        let budgets = shares.budgets(config, lacks_room, running);
        let mut rows = divide_rows(running, turns, budgets);
        let mut head = if config.drafts_from(DraftSource::Head) { runner.head() } else { None };
        let followed_max = head.as_mut().map_or(0, |head| drafting::follow(&mut **head, running));
        let mut drafts = drafting::draft(&rows, running, prefixes, &mut shares.drafting, (config, head));
        if !running.iter().any(Sequence::is_suspect) {
            drafting::fill(&mut rows, &mut drafts, running, prefixes, &mut shares.background, config);
        }
        let plan = Plan::new(running, &rows, drafts, runner.chooses(), followed_max);
        plan.note_overtaken(running);
        plan
    }

    /// Computes a plan; returns whether there was anything to compute. If not, prefetches instead.
    fn compute(&mut self, plan: Plan, runner: &mut dyn Runner) -> bool {
        self.pulse.enter(Phase::Compute);
        let Scheduler { jobs, prefixes, shares, .. } = self;
        if plan.is_empty() {
            tiers::prefetch(jobs, prefixes);
            return false;
        }
        if let Err(fault) = compute::compute(plan, jobs, prefixes, shares, runner) {
            self.restore(&fault, runner);
        }
        true
    }

    /// Spills computed blocks to disk, and ends the sequences and requests that are done.
    fn publish(&mut self, runner: &mut dyn Runner) {
        self.pulse.enter(Phase::Publish);
        let Scheduler { jobs, prefixes, .. } = self;
        prefixes.ram.settle(runner);
        tiers::spill(jobs, prefixes, runner);
        tiers::leave_behind(&jobs.running, prefixes, runner);
        self.end_requests();
        self.drop_retired();
        let Scheduler { jobs, prefixes, .. } = self;
        prefixes.follow_only(|id| jobs.running.find(id).is_some());
        if let Some(head) = runner.head() {
            drafting::follow(head, &jobs.running);
        }
        prefixes.ram.settle(runner);
    }

    /// Frees the sequences that have ended, and finishes the requests that have no open choice.
    fn end_requests(&mut self) {
        let Scheduler { jobs, prefixes, idle, .. } = self;
        for (id, error) in jobs.results.take_failed() {
            jobs.fail(id, error, &mut prefixes.ram.cache);
        }
        while let Some(sequence) = jobs.running.pop_ended() {
            tiers::release_ended(&sequence, prefixes);
            idle.note_seen(&sequence, prefixes);
        }
        let now = prefixes.now();
        jobs.finish_ended(|id| !idle.is_job(id), now, &mut prefixes.ram.cache);
    }

    /// Handles a fault of the runner, and counts the time of a step that began at `started` and computed something.
    fn end_step(&mut self, started: Option<Duration>, runner: &mut dyn Runner) {
        if let Some(fault) = runner.fault() {
            self.restore(&fault, runner);
        }
        let elapsed = started.map(|started| self.now().saturating_sub(started));
        self.jobs.results.counters.step_time += elapsed.unwrap_or_default();
    }

    /// Continues the work in idle time.
    fn use_idle_time(&mut self, runner: &dyn Runner) {
        let (results, prefixes) = (&mut self.jobs.results, &mut self.prefixes);
        self.idle.end_making(results, prefixes);
        if let Some((job, request, limits)) = self.idle.next_job(results, prefixes, &self.config, runner) {
            self.enqueue(job, request, None, &limits);
        }
    }

    /// Drops the namespaces derived from prompts that are no longer public, once they are unused.
    fn drop_retired(&mut self) {
        tiers::release_retired(&self.jobs, &mut self.prefixes);
    }

    /// Returns how long there is nothing to do unless an event arrives.
    pub fn next_pause(&self) -> Pause {
        let Scheduler { jobs: Jobs { queue, running, results, .. }, prefixes, .. } = self;
        let disk = &prefixes.disk;
        let is_due = running.is_due() || results.has_finished();
        let waits = queue.fetches().filter_map(Fetch::until);
        let patience = waits.chain(disk.next_deadline()).min();
        let moves_blocks = disk.has_candidates() || disk.may_offer() || disk.exceeds_share();
        let works = !self.is_idle() || self.idle.has_work(results, prefixes);
        if is_due || (patience.is_none() && (moves_blocks || works)) {
            return Pause::None;
        }
        let look = prefixes.next_expiry_look();
        let next = patience.into_iter().chain(look).chain(disk.next_copy_deadline()).min();
        next.map_or(Pause::Forever, |next| Pause::For(next.saturating_sub(self.now())))
    }

    /// Before the process ends: has the disk take what the next start wants. [`attend`](Scheduler::attend) copies it.
    pub fn spill_for_next_start(&mut self) {
        tiers::spill_for_next_start(&self.jobs.running, &mut self.prefixes);
    }

    /// Number of blocks on their way to the disk.
    pub fn unwritten_blocks(&self) -> usize {
        self.prefixes.disk_stats().map_or(0, |disk| disk.writing)
    }

    /// Ends the requests that were never admitted.
    pub fn fail_queued(&mut self, error: &RequestError) {
        self.jobs.fail_queued(error, &mut self.prefixes.ram.cache);
    }

    /// Ends all requests.
    pub fn fail_all(&mut self, error: &RequestError) {
        self.jobs.fail_all(error, &mut self.prefixes.ram.cache);
    }

    /// Notifies the requests that finished in the last step. A separate call, so that the statistics can be updated
    /// first: a client that has its answer finds it counted.
    pub fn notify_finished(&mut self) {
        self.jobs.results.notify_finished();
    }

    /// True if no request is open, background requests included; idle jobs do not count.
    pub fn is_idle(&self) -> bool {
        self.jobs.results.jobs().all(|(id, _)| self.idle.is_job(id))
    }

    /// The phase of the current step; the thread that runs the steps records the rest.
    pub fn pulse(&self) -> &Arc<Pulse> {
        &self.pulse
    }

    /// The cache, for inspection.
    pub fn cache(&self) -> &Cache {
        &self.prefixes.ram.cache
    }

    /// Sequences that hold blocks.
    pub fn running(&self) -> usize {
        self.jobs.running.len()
    }

    /// Those of them that no client waits for: of the background and of idle time.
    pub fn running_behind(&self) -> usize {
        let idle = self.jobs.running.iter().filter(|sequence| self.idle.is_job(sequence.job));
        self.jobs.running.background() + idle.count()
    }

    /// Requests that were never admitted, except those of the background.
    pub fn queued(&self) -> usize {
        let new = self.jobs.queue.new_requests().filter(|sequence| !sequence.is_background());
        new.filter(|sequence| !self.idle.is_job(sequence.job)).count()
    }

    /// Counters since the start.
    pub fn counters(&self) -> &Counters {
        &self.jobs.results.counters
    }

    /// Mean time from admission to the end of a request; `None` until one has ended.
    pub fn mean_service(&self) -> Option<Duration> {
        self.jobs.results.mean_service()
    }

    /// Requests submitted so far, except idle jobs.
    pub fn submitted(&self) -> u64 {
        self.jobs.results.submitted() - self.idle.submitted
    }

    pub(crate) fn now(&self) -> Duration {
        self.prefixes.now()
    }
}
