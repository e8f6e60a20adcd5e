//! Decides what the model computes next, and hands out what it computed.
//!
//! ```text
//! submit -> waiting -> running -> ended       a sequence; a request has one per choice
//!              ^----------'  preempted        its blocks stay in the cache as long as they can
//! ```
//!
//! Owns the cache, the queue and every sequence. A sequence is its tokens and how many of them
//! are stored in blocks; the rest is to be computed. So prefill, decode and resuming after a
//! preemption are one thing: decode is when a single token is left. Knows no model, reads no
//! clock of its own, starts no thread.
//!
//! Policy stands in `admission` (who is next) and `plan` (how the rows of a step are divided).

mod admission;
mod answer;
pub mod disk;
mod end;
mod job;
mod kept;
mod parts;
mod plan;
mod probe;
mod public;
mod publish;
mod queue;
mod results;
mod reuse;
mod room;
mod running;
mod sequence;
mod submission;
mod turns;

use std::sync::Arc;
use std::time::Duration;

use kvik_cache::{Cache, CacheConfig, CacheError, NamespaceId, SeqId};

use crate::api::RequestError;
use crate::config::EngineConfig;
use crate::model::batch::{Batch, Row, Runner, SequenceKv};
use crate::panics::contain;
use crate::stats::{Counters, DiskStats};
use crate::text::stream::Vocabulary;
use disk::{Disk, RootTable};
use parts::Owners;
use plan::Plan;
use public::Public;
use queue::Queue;
use results::Results;
use room::Room;
use running::Running;
use turns::Turns;

pub use parts::TenantPart;
pub use submission::{Limits, Submission};

/// Tells the time since some fixed moment.
pub type Clock = Box<dyn Fn() -> Duration + Send>;

/// Schedules the requests of one model.
pub struct Scheduler {
    config: EngineConfig,
    cache_config: CacheConfig,
    cache: Cache,
    clock: Clock,
    /// Sequences without blocks.
    queue: Queue,
    /// Sequences with blocks.
    running: Running,
    turns: Turns,
    owners: Owners,
    /// The requests of all of them.
    results: Results,
    next_seq: u64,
    /// The identities of the namespaces in use.
    roots: RootTable,
    /// The tier below RAM, when there is one.
    disk: Option<Disk>,
    /// Prompts that tenants who keep apart may share.
    public: Vec<Public>,
    /// Namespaces derived from prompts that are public no longer, dropped when nobody uses them.
    leaving: Vec<NamespaceId>,
}

/// How long a scheduler may be left alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// There is something to compute.
    None,
    /// Nothing is, until so much time has passed or the disk has done something.
    For(Duration),
    /// Nothing is, until somebody asks for it.
    Forever,
}

impl Scheduler {
    /// A scheduler with an empty cache.
    pub fn new(
        config: EngineConfig,
        cache_config: CacheConfig,
        vocabulary: Arc<Vocabulary>,
        clock: Clock,
    ) -> Result<Scheduler, CacheError> {
        Ok(Scheduler {
            cache: Cache::new(cache_config)?,
            config,
            cache_config,
            clock,
            queue: Queue::default(),
            running: Running::default(),
            turns: Turns::default(),
            owners: Owners::default(),
            results: Results::new(vocabulary),
            next_seq: 0,
            roots: RootTable::default(),
            disk: None,
            public: Vec::new(),
            leaving: Vec::new(),
        })
    }

    /// One round: decides which rows to compute, computes them, and hands out the results.
    pub fn step(&mut self, runner: &mut dyn Runner) {
        self.cache.set_now(self.now());
        self.drop_closed();
        self.settle_disk(runner);
        let plan = self.plan(runner);
        if plan.is_empty() {
            self.warm_up();
        } else {
            self.compute(plan, runner);
        }
        self.spill(runner);
        self.sweep_disk();
        self.drop_ended();
        self.drop_derived();
    }

    /// Computes the rows of `plan`, and learns how long prompts take.
    fn compute(&mut self, plan: Plan, runner: &mut dyn Runner) {
        let started = self.now();
        let computed = contain(|| runner.forward(&plan.batch(&plan.stored(&self.running, &self.cache))));
        let elapsed = (self.clock)().saturating_sub(started);
        match computed {
            Ok(logits) => {
                if let Some(disk) = &mut self.disk {
                    disk.cost.computed(plan.prefill_rows(), elapsed);
                }
                self.publish(&plan.spans, logits);
            }
            Err(error) => self.compute_apart(plan, error, runner),
        }
    }

    /// Computes the sequences of `plan` one by one, after a panic of all together: the request of one that
    /// panics alone fails. The others get what they would have got, to the bit: results do not depend on who
    /// is in the batch, and positions that were stored before the panic are stored again.
    fn compute_apart(&mut self, plan: Plan, error: RequestError, runner: &mut dyn Runner) {
        let Plan { rows, spans } = plan;
        tracing::error!("a batch of {} sequences panicked: {error}", spans.len());
        let alone = spans.len() == 1;
        let (mut rest, mut done, mut logits) = (rows.as_slice(), Vec::new(), Vec::new());
        for span in spans {
            let rows;
            (rows, rest) = rest.split_at(span.rows);
            let rows: Vec<Row> = rows.iter().map(|row| Row { sequence: 0, ..*row }).collect();
            let sequences = [SequenceKv::in_blocks(self.cache.table(self.running[span.index].id))];
            let batch = Batch { rows: &rows, sequences: &sequences };
            let computed = match alone {
                true => Err(error.clone()),
                false => contain(|| runner.forward(&batch)),
            };
            match computed {
                Ok(row) => {
                    logits.extend_from_slice(if span.logits { row } else { &[] });
                    done.push(span);
                }
                Err(error) => self.results.fail_later(self.running[span.index].job, error),
            }
        }
        self.publish(&done, &logits);
    }

    /// Settles who runs and chooses the rows of the next step.
    fn plan(&mut self, runner: &mut dyn Runner) -> Plan {
        self.start_forks(runner);
        if self.make_room() == Room::Enough {
            self.admit(runner);
        }
        self.end_what_is_stored();
        Plan::new(&self.running, &self.turns, &self.config)
    }

    /// How long there is nothing to do unless something happens.
    pub fn rest(&self) -> Rest {
        let due = self.running.is_due() || self.results.has_finished();
        let (patience, expiry) = (self.next_deadline(), self.disk.as_ref().and_then(Disk::next_expiry));
        let wishes = self.disk.as_ref().is_some_and(Disk::has_wishes);
        if due || (patience.is_none() && (wishes || !self.is_idle())) {
            return Rest::None;
        }
        let next = patience.into_iter().chain(expiry).min();
        next.map_or(Rest::Forever, |next| Rest::For(next.saturating_sub(self.now())))
    }

    /// Tells the requests that ended in the last step. A call of its own, so that numbers can be
    /// brought up to date first: who has got an answer finds it counted.
    pub fn take_leave(&mut self) {
        self.results.notify_finished();
    }

    /// From now on tenants share the model, the cache and the disk like this; others have the weight
    /// 1. What they keep follows with their next request.
    pub fn set_tenants(&mut self, parts: &[TenantPart]) {
        self.turns.set_weights(parts.iter().map(|part| (part.tenant, part.weight)));
        self.owners = Owners::new(parts);
        self.wish_for(parts);
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.results.is_empty()
    }

    /// The cache, to look at.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Sequences that hold blocks.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Requests that were never admitted yet.
    pub fn queued(&self) -> usize {
        self.queue.new_requests().count()
    }

    /// What was done so far.
    pub fn counters(&self) -> &Counters {
        &self.results.counters
    }

    /// Mean time from admission to the end of a request, once one has ended.
    pub fn mean_service(&self) -> Option<Duration> {
        self.results.mean_service()
    }

    /// Requests submitted so far.
    pub fn submitted(&self) -> u64 {
        self.results.submitted()
    }

    /// Numbers about the tier below RAM, when there is one.
    pub fn disk_stats(&self) -> Option<DiskStats> {
        self.disk.as_ref().map(|disk| disk.stats(self.config.block_bytes))
    }

    fn now(&self) -> Duration {
        (self.clock)()
    }

    fn new_seq(&mut self) -> SeqId {
        self.next_seq += 1;
        SeqId(self.next_seq)
    }
}
