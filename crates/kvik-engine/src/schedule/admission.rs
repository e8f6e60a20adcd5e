//! Who is admitted next.
//!
//! Sequences that were preempted come first, oldest first: their clients are already reading. Then
//! tenants take [turns](super::turns). Among the requests of one tenant, in order:
//! 1. Those that were overtaken [`OVERTAKEN_MAX`] times, oldest first. None of them and of the
//!    preempted is overtaken again: while the first does not fit, nobody is admitted.
//! 2. The rest, longest known prefix first, then oldest. What does not fit may be overtaken, by
//!    younger requests of its tenant and by others out of their turn.
//!
//! A request whose prompt is being computed by a running sequence is held until that is done, so
//! that twins compute their prompt once. It is held for [`HOLDS_MAX`] different sequences at most.
//! Hence everybody waits for a bounded number of others.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use kvik_cache::{BLOCK_POSITIONS, SeqId, StopReason, TenantId, blocks_for};

use super::Scheduler;
use super::disk::{Fetched, Spilled};
use super::job::JobId;
use super::reuse::{HEADROOM, Known, Reused, will_compute};
use super::sequence::{Sequence, Sharing, insert_by_age};
use crate::api::RequestError;
use crate::model::batch::Runner;

/// Younger requests that may go first.
const OVERTAKEN_MAX: u32 = 8;
/// Running sequences that a request waits for to share their prefill, one after the other.
const HOLDS_MAX: u32 = 4;
/// New requests that are considered in one step, which bounds the time for looking them up. They
/// are divided among the tenants whose turns come first, so that nobody's flood hides others.
const WINDOW: usize = 32;
/// Tenants that are considered in one step.
const TENANTS_MAX: usize = 8;

/// A sequence without blocks.
pub(super) struct Waiting {
    pub(super) sequence: Sequence,
    overtaken: u32,
    holds: u32,
    /// The sequence whose prefill it waits for.
    held_by: Option<SeqId>,
    /// What the disk did for it.
    pub(super) fetch: Fetched,
}

/// The place of a waiting sequence in the order of admission; lower is earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Preempted,
    Aged,
    /// By the tokens known, most first.
    New(Reverse<usize>),
}

/// Names a waiting sequence.
type Key = (JobId, u32);

/// A waiting sequence that may go now.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    rank: Rank,
    known: Known,
    key: Key,
    tenant: TenantId,
}

/// Candidates of each tenant, in the order in which they may go.
type Lines = BTreeMap<TenantId, VecDeque<Candidate>>;

enum Outcome {
    Admitted,
    Held,
    NoRoom,
}

impl Waiting {
    pub(super) fn new(sequence: Sequence) -> Waiting {
        Waiting { sequence, overtaken: 0, holds: 0, held_by: None, fetch: Fetched::default() }
    }

    /// Whether it was never admitted.
    pub(super) fn is_new(&self) -> bool {
        !self.sequence.started
    }

    fn rank(&self, known: Known) -> Rank {
        if !self.is_new() {
            Rank::Preempted
        } else if self.overtaken >= OVERTAKEN_MAX {
            Rank::Aged
        } else {
            Rank::New(Reverse(known.tokens))
        }
    }

    fn key(&self) -> Key {
        (self.sequence.job, self.sequence.choice)
    }
}

impl Scheduler {
    /// Puts a sequence back into the queue, where its age says.
    pub(super) fn requeue(&mut self, sequence: Sequence) {
        let index = self.waiting.partition_point(|other| other.sequence.by_age(&sequence).is_lt());
        self.waiting.insert(index, Waiting::new(sequence));
    }

    /// Admits waiting sequences, as many as there is room for.
    pub(super) fn admit(&mut self, runner: &mut dyn Runner) {
        if self.waiting.is_empty() || self.is_full() {
            return;
        }
        let (mut preempted, mut lines) = (self.preempted(), self.lines());
        let mut passed = Vec::new();
        while !self.is_full()
            && let Some(candidate) = preempted.pop_front().or_else(|| self.next_turn(&mut lines))
        {
            match self.try_admit(candidate, runner) {
                Outcome::NoRoom if !matches!(candidate.rank, Rank::New(_)) => return,
                Outcome::NoRoom => passed.push(candidate),
                Outcome::Admitted => self.count_overtaken(&passed, candidate.tenant),
                Outcome::Held => {}
            }
        }
    }

    fn is_full(&self) -> bool {
        self.running.len() >= self.config.parallel_max
    }

    /// Sequences that run again when there is room, oldest first.
    fn preempted(&self) -> VecDeque<Candidate> {
        self.waiting
            .iter()
            .filter(|waiting| !waiting.is_new())
            .map(|waiting| self.candidate(waiting))
            .collect()
    }

    /// The new requests that are considered, tenant by tenant.
    fn lines(&self) -> Lines {
        let mut tenants: Vec<TenantId> = Vec::new();
        let new = || self.waiting.iter().filter(|waiting| waiting.is_new());
        for waiting in new() {
            // Few tenants: a list of those seen is faster than a set.
            if !tenants.contains(&waiting.sequence.tenant) {
                tenants.push(waiting.sequence.tenant);
            }
        }
        tenants.sort_by(|&a, &b| self.time(a).total_cmp(&self.time(b)));
        tenants.truncate(TENANTS_MAX);
        let window = WINDOW / tenants.len().max(1);
        let line = |tenant: TenantId| {
            let (mut places, now) = (self.load_places(), self.now());
            let own = new().filter(|waiting| waiting.sequence.tenant == tenant);
            let own = own.filter(|waiting| waiting.fetch.may_go_on(&mut places, now)).take(window);
            let mut line: Vec<Candidate> = own.map(|waiting| self.candidate(waiting)).collect();
            line.sort_by_key(|candidate| (candidate.rank, candidate.key));
            (tenant, line.into())
        };
        tenants.into_iter().map(line).collect()
    }

    fn candidate(&self, waiting: &Waiting) -> Candidate {
        let known = self.known(&waiting.sequence);
        Candidate { rank: waiting.rank(known), known, key: waiting.key(), tenant: waiting.sequence.tenant }
    }

    /// The first in line of the tenant whose turn it is; of two, whoever waits longer.
    fn next_turn(&self, lines: &mut Lines) -> Option<Candidate> {
        let fronts = lines.iter().filter_map(|(&tenant, line)| Some((tenant, line.front()?.key)));
        let order = |a: &(TenantId, Key), b: &(TenantId, Key)| {
            self.time(a.0).total_cmp(&self.time(b.0)).then(a.1.cmp(&b.1))
        };
        let (tenant, _) = fronts.min_by(order)?;
        lines.get_mut(&tenant)?.pop_front()
    }

    /// A tenant's virtual time, with what its running sequences are still to get.
    fn time(&self, tenant: TenantId) -> f64 {
        let own = self.running.iter().filter(|running| running.tenant == tenant);
        self.turns.time(tenant, own.map(Sequence::missing).sum())
    }

    /// A request of `tenant` was admitted although it was the turn of others, whom it found
    /// without room.
    fn count_overtaken(&mut self, passed: &[Candidate], tenant: TenantId) {
        for candidate in passed.iter().filter(|candidate| candidate.tenant != tenant) {
            let overtaken = self.waiting.iter_mut().find(|waiting| waiting.key() == candidate.key);
            overtaken.into_iter().for_each(|waiting| waiting.overtaken += 1);
        }
    }

    fn try_admit(&mut self, candidate: Candidate, runner: &mut dyn Runner) -> Outcome {
        let Candidate { known, key, .. } = candidate;
        let Some(index) = self.waiting.iter().position(|waiting| waiting.key() == key) else {
            return Outcome::Held;
        };
        if self.hold(index, known.tokens) || self.fetch(index, known.tokens) {
            return Outcome::Held;
        }
        let (id, mut known, mut headroom) = (self.new_seq(), known, HEADROOM);
        let reused = loop {
            match self.take_blocks(index, id, known, headroom, runner) {
                Some(reused) => break reused,
                None if self.let_disk_go() => known = self.known(&self.waiting[index].sequence),
                // Alone it may do with what its tokens need, and its answer may be short.
                None if self.running.is_empty() && headroom > 0 => headroom = 0,
                None => return self.no_room(index),
            }
        };
        let waiting = self.waiting.remove(index);
        self.start(waiting, id, reused);
        Outcome::Admitted
    }

    /// Whether a waiting sequence should wait on, because a running one is about to compute more
    /// of its tokens than are known.
    fn hold(&mut self, index: usize, known: usize) -> bool {
        let waiting = &self.waiting[index];
        let shares =
            self.running.iter().map(|running| (will_compute(running, &waiting.sequence), running.id));
        let source = shares.max_by_key(|&(shared, _)| shared).filter(|&(shared, _)| shared > known);
        let source = source.map(|(_, id)| id);
        let waiting = &mut self.waiting[index];
        if source.is_some() && waiting.held_by != source {
            waiting.holds += 1;
        }
        waiting.held_by = source;
        source.is_some() && waiting.holds <= HOLDS_MAX
    }

    /// A sequence does not fit now. When nobody else runs it never will, which `Limits` excludes
    /// for all that was submitted; better an error than a queue that stands still.
    fn no_room(&mut self, index: usize) -> Outcome {
        if self.running.is_empty() {
            let sequence = &self.waiting[index].sequence;
            self.fail(sequence.job, self.over_budget(sequence.tokens.len()));
        }
        Outcome::NoRoom
    }

    /// Why so many tokens do not fit though nobody else runs.
    pub(super) fn over_budget(&self, tokens: usize) -> RequestError {
        let (needed_blocks, budget_blocks) = (blocks_for(tokens), self.cache_config.blocks);
        match self.cache.stats().pinned {
            0 => RequestError::OverBudget { needed_blocks, budget_blocks },
            pinned_blocks => RequestError::Pinned { needed_blocks, pinned_blocks, budget_blocks },
        }
    }

    /// A sequence has its blocks, `reused.tokens` of it stored already.
    fn start(&mut self, waiting: Waiting, id: SeqId, reused: Reused) {
        let now = self.now();
        let Waiting { mut sequence, fetch, .. } = waiting;
        let stop = self.why(&sequence, reused, fetch);
        self.turns.admitted(self.time(sequence.tenant));
        let job = self.jobs.get_mut(&sequence.job).expect("a waiting sequence has a job");
        if !sequence.started {
            job.admitted(now, Reused { stop, ..reused });
            self.counters.prompt_tokens += sequence.prompt_len as u64;
            let older = self.waiting.iter_mut().take_while(|w| w.sequence.job < sequence.job);
            let older = older.filter(|w| w.sequence.tenant == sequence.tenant);
            older.filter(|w| w.is_new() && w.held_by.is_none()).for_each(|w| w.overtaken += 1);
        }
        let cached = reused.tokens.min(sequence.prompt_len).saturating_sub(sequence.furthest);
        job.report.cached_tokens += cached;
        job.report.disk_tokens += fetch.loaded(reused.tokens).min(cached);
        self.counters.reused_tokens += cached as u64;
        sequence.id = id;
        sequence.started = true;
        sequence.stored = reused.tokens;
        sequence.spilled = Spilled::from_reuse(reused.tokens);
        sequence.furthest = sequence.furthest.max(reused.tokens);
        insert_by_age(&mut self.running, sequence);
    }

    /// Why no more of a prompt is reused, as far as cache and disk know.
    fn why(&self, sequence: &Sequence, reused: Reused, fetch: Fetched) -> StopReason {
        let elsewhere = || {
            let Sharing::Namespace(namespace) = sequence.sharing else { return None };
            let unknown = reused.stop == StopReason::FirstSeen && reused.tokens < BLOCK_POSITIONS;
            self.disk.as_ref().filter(|_| unknown)?.elsewhere(&self.roots[&namespace], &sequence.tokens)
        };
        match reused.stop {
            StopReason::Complete => StopReason::Complete,
            stop => fetch.verdict.or_else(elsewhere).unwrap_or(stop),
        }
    }
}
