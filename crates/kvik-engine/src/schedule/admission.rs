//! Admission: takes candidates from the queue, gives them blocks, and starts them. The
//! [queue](super::queue) decides their order.

use kvik_cache::{SeqId, StopReason, TenantId};

use super::Scheduler;
use super::disk::{Fetch, Spilled};
use super::growth::Growth;
use super::prefix::{Known, Reused};
use super::queue::{Candidate, Candidates, Facts, Waiting};
use super::reuse::{HEADROOM, Newcomer, known, shared_prefill};
use super::sequence::{Sequence, Sharing};
use crate::model::batch::Runner;

pub(super) enum Outcome {
    Admitted,
    Held,
    NoRoom,
}

impl Scheduler {
    /// Gives the running sequences the blocks that they need, then admits waiting ones, as many as there is room
    /// for. When some had to be preempted, there is none.
    pub(super) fn grow_and_admit(&mut self, runner: &mut dyn Runner) {
        if self.grow(runner) == Growth::Complete {
            self.admit(runner);
        }
    }

    fn admit(&mut self, runner: &mut dyn Runner) {
        if self.queue.is_empty() || self.is_full() {
            return;
        }
        let (mut candidates, mut passed) = (self.candidates(), Vec::new());
        while !self.is_full()
            && let Some(candidate) = candidates.next(|tenant| self.time(tenant))
        {
            match self.try_admit(&candidate, &passed, runner) {
                Outcome::NoRoom if !candidate.may_be_overtaken() => return,
                Outcome::NoRoom => passed.push(candidate),
                Outcome::Admitted | Outcome::Held => {}
            }
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.running.len() >= self.config.parallel_max
    }

    fn candidates(&self) -> Candidates {
        self.queue.candidates(&Facts {
            known: &|sequence| known(sequence, &self.ram.cache, &self.running),
            time: &|tenant| self.time(tenant),
            loads: self.disk.loads_left(),
            now: self.now(),
        })
    }

    /// A tenant's virtual time, with what its running sequences are still to get.
    fn time(&self, tenant: TenantId) -> f64 {
        self.turns.time(tenant, self.running.missing(tenant))
    }

    fn try_admit(&mut self, candidate: &Candidate, passed: &[Candidate], runner: &mut dyn Runner) -> Outcome {
        let Some(index) = self.queue.position(candidate) else { return Outcome::Held };
        self.choose_part(index, candidate.known.tokens);
        if let Some(outcome) = self.admit_kept(index, passed, runner) {
            return outcome;
        }
        if self.queue[index].sequence.chooses_part() {
            self.queue[index].sequence.forgetting = None;
        }
        let tokens = candidate.known.tokens;
        let source = shared_prefill(&self.queue[index].sequence, tokens, &self.running);
        if self.queue[index].hold(source) || self.fetch(index, tokens) {
            return Outcome::Held;
        }
        let id = self.ram.new_seq();
        let Some(reused) = self.take_blocks(index, id, candidate.known, runner) else {
            return self.no_room(index);
        };
        let waiting = self.queue.admit(index, passed);
        self.start(waiting, id, reused);
        Outcome::Admitted
    }

    /// Blocks for the sequence at `index` of the queue, with what is known of it.
    fn take_blocks(
        &mut self,
        index: usize,
        id: SeqId,
        candidate: Known,
        runner: &mut dyn Runner,
    ) -> Option<Reused> {
        let (mut prefix, mut headroom) = (candidate, HEADROOM);
        loop {
            let newcomer = Newcomer { sequence: &self.queue[index].sequence, id, headroom };
            let reused = newcomer.take_blocks(prefix, &mut self.ram, &self.running, runner);
            if reused.is_some() {
                return reused;
            }
            if self.release_disk_blocks() {
                prefix = known(&self.queue[index].sequence, &self.ram.cache, &self.running);
            } else if self.running.is_empty() && headroom > 0 {
                // Alone it may do with what its tokens need, and its answer may be short.
                headroom = 0;
            } else {
                return None;
            }
        }
    }

    /// A sequence does not fit now. When nobody else runs it never will, which
    /// `RequestLimits` excludes
    /// for all that was submitted; better an error than a queue that stands still.
    pub(super) fn no_room(&mut self, index: usize) -> Outcome {
        if self.running.is_empty() {
            let sequence = &self.queue[index].sequence;
            self.fail(sequence.job, self.ram.over_budget(sequence.tokens.len()));
        }
        Outcome::NoRoom
    }

    /// A sequence has its blocks, `reused.tokens` of it stored already.
    pub(super) fn start(&mut self, waiting: Waiting, id: SeqId, reused: Reused) {
        let now = self.now();
        let Waiting { mut sequence, fetch, .. } = waiting;
        let stop = self.why(&sequence, reused, fetch);
        self.turns.admitted(self.time(sequence.tenant));
        let job = self.results.job(sequence.job);
        let cached = reused.tokens.min(sequence.prompt_len).saturating_sub(sequence.furthest);
        job.report.cached_tokens += cached;
        job.report.disk_tokens += fetch.loaded(reused.tokens).min(cached);
        if !sequence.started {
            job.admitted(now, Reused { stop, ..reused });
            self.results.counters.prompt_tokens += sequence.prompt_len as u64;
        }
        self.results.counters.reused_tokens += cached as u64;
        sequence.id = id;
        sequence.started = true;
        sequence.stored = reused.tokens;
        sequence.spilled = Spilled::from_reuse(reused.tokens);
        sequence.furthest = sequence.furthest.max(reused.tokens);
        self.running.insert(sequence);
    }

    /// Why no more of a prompt is reused, as far as cache and disk know.
    fn why(&self, sequence: &Sequence, reused: Reused, fetch: Fetch) -> StopReason {
        let miss = || {
            let Sharing::Namespace(namespace) = sequence.sharing else { return None };
            let roots = self.tenants.namespaces.roots(namespace);
            self.disk.miss_reason(roots, &sequence.tokens, reused.stop, reused.tokens)
        };
        match reused.stop {
            _ if reused.tokens == sequence.observed_from() => StopReason::Retained,
            StopReason::Complete => StopReason::Complete,
            stop => fetch.verdict.or_else(miss).unwrap_or(stop),
        }
    }
}
