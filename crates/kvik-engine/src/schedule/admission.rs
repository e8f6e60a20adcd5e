//! Admission: takes candidates from the queue, gives them blocks, and starts them. The [queue](super::queue) decides
//! their order.

use kvik_cache::{SeqId, StopReason, TenantId};
use kvik_model::batch::Runner;

use super::Scheduler;
use super::disk::{Fetch, Spilled};
use super::growth::Growth;
use super::prefix::{Known, Reused};
use super::queue::{Candidate, Facts, Queue, Waiting};
use super::reuse::{HEADROOM, Newcomer, is_coming, known, shared_prefill};
use super::sequence::{Sequence, Sharing};

/// Maximum number of background sequences that run at the same time.
const BACKGROUND_MAX: usize = 2;

pub(super) enum Outcome {
    Admitted,
    Held,
    NoRoom,
}

/// Why foreground sequences were not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// No foreground sequence is left, or those left wait for another sequence's prefill or for a read.
    None,
    ForRoom,
}

impl Scheduler {
    /// Gives the running sequences the blocks that they need, then admits as many waiting sequences as there is room
    /// for. If some had to be preempted, there is none. Background sequences are admitted last, if no foreground
    /// sequence lacks room.
    pub(super) fn grow_and_admit(&mut self, runner: &mut dyn Runner) {
        if self.grow(runner) == Growth::Complete {
            self.admit(runner);
        }
    }

    fn admit(&mut self, runner: &mut dyn Runner) {
        match self.admit_foreground(runner) {
            Waits::None => self.admit_background(runner),
            // A background sequence admitted now could evict blocks that the foreground will reuse.
            Waits::ForRoom => while self.make_way() {},
        }
    }

    /// Admits foreground sequences; returns whether one is left that had no room.
    fn admit_foreground(&mut self, runner: &mut dyn Runner) -> Waits {
        if self.queue.oldest_foreground().is_none() {
            return Waits::None;
        }
        let mut passed = Vec::new();
        let mut candidates = self.with_facts(Queue::candidates);
        while let Some(candidate) = candidates.next(|tenant| self.time(tenant)) {
            if self.is_full() {
                return Waits::ForRoom;
            }
            match self.try_admit(&candidate, &passed, runner) {
                Outcome::NoRoom if !candidate.may_be_overtaken() => return Waits::ForRoom,
                Outcome::NoRoom => passed.push(candidate),
                Outcome::Admitted | Outcome::Held => {}
            }
        }
        if passed.is_empty() { Waits::None } else { Waits::ForRoom }
    }

    fn admit_background(&mut self, runner: &mut dyn Runner) {
        let places = self.background_places();
        if places == 0 {
            return;
        }
        for candidate in self.with_facts(|queue, facts| queue.background_candidates(places, facts)) {
            if let Outcome::NoRoom = self.try_admit(&candidate, &[], runner) {
                return;
            }
        }
    }

    /// Whether the maximum number of foreground sequences run.
    pub(super) fn is_full(&self) -> bool {
        self.running.foreground() >= self.config.parallel_max
    }

    /// Whether one more sequence like this may run. The background has one admission slot in addition to
    /// `parallel_max`, so that it makes progress even when the others are always taken.
    pub(super) fn has_place(&self, sequence: &Sequence) -> bool {
        let is_left = self.running.len() <= self.config.parallel_max;
        match sequence.is_background() {
            true => self.background_places() > 0,
            false => is_left && !self.is_full(),
        }
    }

    /// Number of further background sequences that may run.
    fn background_places(&self) -> usize {
        let left = (self.config.parallel_max + 1).saturating_sub(self.running.len());
        BACKGROUND_MAX.saturating_sub(self.running.background()).min(left)
    }

    fn with_facts<T>(&self, decide: impl FnOnce(&Queue, &Facts<'_>) -> T) -> T {
        let facts = Facts {
            known: &|sequence| known(sequence, &self.ram.cache, &self.running),
            time: &|tenant| self.time(tenant),
            loads: self.disk.loads_left(),
            now: self.now(),
        };
        decide(&self.queue, &facts)
    }

    /// A tenant's virtual time, including what its running sequences still have to compute.
    fn time(&self, tenant: TenantId) -> f64 {
        self.turns.time(tenant, self.running.missing(tenant))
    }

    /// Admits a candidate if possible, preempting the background for a foreground candidate.
    fn try_admit(&mut self, candidate: &Candidate, passed: &[Candidate], runner: &mut dyn Runner) -> Outcome {
        loop {
            let outcome = self.try_admit_beside(candidate, passed, runner);
            let lacks_room = match outcome {
                Outcome::Admitted => false,
                Outcome::NoRoom => true,
                Outcome::Held => self.lacks_room_to_load(candidate),
            };
            if !lacks_room || candidate.is_background() || !self.make_way() {
                return outcome;
            }
        }
    }

    /// Whether a candidate waits because there are no blocks to load into.
    fn lacks_room_to_load(&self, candidate: &Candidate) -> bool {
        let index = self.queue.position(candidate).filter(|_| self.disk.loads_left() > 0);
        index.is_some_and(|index| self.queue[index].fetch.waits_for_capacity())
    }

    /// Admits a candidate if possible, without preempting any running sequence.
    fn try_admit_beside(
        &mut self,
        candidate: &Candidate,
        passed: &[Candidate],
        runner: &mut dyn Runner,
    ) -> Outcome {
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
        if let Some(source) = source {
            self.mark_fork(source, index);
        }
        if self.queue[index].hold(source) || self.fetch(index, tokens) {
            return Outcome::Held;
        }
        let id = self.ram.new_seq();
        let Some(reused) = self.take_blocks(index, id, candidate.known, runner) else {
            return self.no_room(index);
        };
        let waiting = self.queue.admit(index, reused.tokens, passed);
        self.start(waiting, id, reused);
        self.share_reused(id, reused.tokens);
        self.spill_used_state(id, reused.tokens, runner);
        Outcome::Admitted
    }

    /// Has a running sequence keep the auxiliary state with which the sequence at `index` of the queue can continue
    /// where the two diverge.
    fn mark_fork(&mut self, source: SeqId, index: usize) {
        let waiting = &self.queue[index].sequence;
        let Some(running) = self.running.find(source) else { return };
        let common = running.common(waiting).min(waiting.reuse_max());
        self.ram.cache.mark(source, common);
    }

    /// Allocates blocks for the sequence at `index` of the queue, reusing its known prefix.
    fn take_blocks(
        &mut self,
        index: usize,
        id: SeqId,
        candidate: Known,
        runner: &mut dyn Runner,
    ) -> Option<Reused> {
        if !self.has_place(&self.queue[index].sequence) {
            return None;
        }
        let (mut prefix, mut headroom) = (candidate, HEADROOM);
        loop {
            let newcomer = Newcomer { sequence: &self.queue[index].sequence, id, headroom };
            let reused = newcomer.take_blocks(prefix, &mut self.ram, &self.running, runner);
            if reused.is_some() {
                return reused;
            }
            if !self.somebody_gives_way(index) && self.release_disk_blocks() {
                prefix = known(&self.queue[index].sequence, &self.ram.cache, &self.running);
            } else if self.running.is_empty() && headroom > 0 {
                // If it runs alone, blocks for its tokens suffice; its answer may be short.
                headroom = 0;
            } else {
                return None;
            }
        }
    }

    /// Whether the background makes way for the sequence at `index` of the queue, or, if that is a background sequence,
    /// whether it makes way for others.
    pub(super) fn somebody_gives_way(&self, index: usize) -> bool {
        match self.queue[index].sequence.is_background() {
            true => self.running.foreground() > 0 || self.queue.oldest_foreground().is_some(),
            false => self.running.background() > 0,
        }
    }

    /// Handles a sequence that does not fit now. If no other sequence runs it never will, which `RequestLimits`
    /// excludes for every submitted request; an error is better than a stalled queue. A background sequence may lack
    /// blocks that foreground requests hold.
    pub(super) fn no_room(&mut self, index: usize) -> Outcome {
        if self.running.is_empty() && !self.somebody_gives_way(index) {
            let sequence = &self.queue[index].sequence;
            self.fail(sequence.job, self.ram.over_budget(sequence.tokens.len()));
        }
        Outcome::NoRoom
    }

    /// Starts a sequence that has its blocks, `reused.tokens` of it stored already.
    pub(super) fn start(&mut self, waiting: Waiting, id: SeqId, reused: Reused) {
        let now = self.now();
        let Waiting { mut sequence, fetch, .. } = waiting;
        let stop = self.why(&sequence, reused, fetch);
        if !sequence.is_background() {
            self.turns.admitted(self.time(sequence.tenant));
        }
        let job = self.results.job(sequence.job);
        let cached = reused.tokens.min(sequence.prompt_len).saturating_sub(sequence.furthest);
        job.report.cached_tokens += cached;
        let loaded = fetch.loaded(reused.tokens).at_most(cached);
        job.report.host_tokens += loaded.host;
        job.report.disk_tokens += loaded.disk;
        job.report.remote_tokens += loaded.remote;
        if !sequence.started {
            job.admitted(now, Reused { stop, ..reused });
            job.prefill_progress(cached, sequence.prompt_len);
            self.results.counters.prompt_tokens += sequence.prompt_len as u64;
        }
        self.results.counters.reused_tokens += cached as u64;
        sequence.id = id;
        sequence.started = true;
        (sequence.stored, sequence.began) = (reused.tokens, reused.tokens);
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
        let is_coming = || is_coming(sequence, reused.tokens, &self.running);
        let coming = || is_coming().then_some(StopReason::StillComputing);
        match reused.stop {
            stop if sequence.pools_all() && stop != StopReason::Private => StopReason::Pooled,
            _ if reused.tokens == sequence.observed_from() => StopReason::Retained,
            StopReason::Complete => StopReason::Complete,
            stop => {
                let unasked = || fetch.unasked_remote(stop);
                fetch.verdict.or_else(coming).or_else(miss).or_else(unasked).unwrap_or(stop)
            }
        }
    }
}
