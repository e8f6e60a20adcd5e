//! Admission: takes candidates from the queue, gives them blocks, and starts them. The
//! [queue](super::queue) decides their order.

use kvik_cache::{SeqId, StopReason, TenantId};

use super::Scheduler;
use super::disk::{Fetch, Spilled};
use super::growth::Growth;
use super::prefix::{Known, Reused};
use super::queue::{Candidate, Facts, Queue, Waiting};
use super::reuse::{HEADROOM, Newcomer, is_coming, known, shared_prefill};
use super::sequence::{Sequence, Sharing};
use crate::model::batch::Runner;

/// Sequences of the background that run at the same time.
const BACKGROUND_MAX: usize = 2;

pub(super) enum Outcome {
    Admitted,
    Held,
    NoRoom,
}

/// What those that somebody waits for, and that were not admitted, wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// Nobody waits, or for others to compute or to read.
    None,
    ForRoom,
}

impl Scheduler {
    /// Gives the running sequences the blocks that they need, then admits waiting ones, as many as there is room
    /// for. When some had to be preempted, there is none. Then those of the background, where nobody is left who lacks
    /// room.
    pub(super) fn grow_and_admit(&mut self, runner: &mut dyn Runner) {
        if self.grow(runner) == Growth::Complete {
            self.admit(runner);
        }
    }

    fn admit(&mut self, runner: &mut dyn Runner) {
        match self.admit_foreground(runner) {
            Waits::None => self.admit_background(runner),
            // What it evicted now might be what they will reuse.
            Waits::ForRoom => while self.make_way() {},
        }
    }

    /// Admits those that somebody waits for; whether one is left that had no room.
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

    /// Whether as many run as may that somebody waits for.
    pub(super) fn is_full(&self) -> bool {
        self.running.foreground() >= self.config.parallel_max
    }

    /// Whether one more sequence like this may run. The background has a place of its own beside those of all others, so
    /// that it goes on where these are taken all the time.
    pub(super) fn has_place(&self, sequence: &Sequence) -> bool {
        let is_left = self.running.len() <= self.config.parallel_max;
        match sequence.is_background() {
            true => self.background_places() > 0,
            false => is_left && !self.is_full(),
        }
    }

    /// Sequences of the background that may run besides those that do.
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

    /// A tenant's virtual time, with what its running sequences are still to get.
    fn time(&self, tenant: TenantId) -> f64 {
        self.turns.time(tenant, self.running.missing(tenant))
    }

    /// Admits a candidate if it can be; the background gives way to others.
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

    /// Whether a candidate waits because there are no blocks to which more could be read.
    fn lacks_room_to_load(&self, candidate: &Candidate) -> bool {
        let index = self.queue.position(candidate).filter(|_| self.disk.loads_left() > 0);
        index.is_some_and(|index| self.queue[index].fetch.waits_for_capacity())
    }

    /// Admits a candidate if it can be, beside all that run.
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

    /// Has a running sequence leave what the one at `index` of the queue needs to go on where the two part.
    fn mark_fork(&mut self, source: SeqId, index: usize) {
        let waiting = &self.queue[index].sequence;
        let Some(running) = self.running.find(source) else { return };
        let common = running.common(waiting).min(waiting.reuse_max());
        self.ram.cache.mark(source, common);
    }

    /// Blocks for the sequence at `index` of the queue, with what is known of it.
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
                // Alone it may do with what its tokens need, and its answer may be short.
                headroom = 0;
            } else {
                return None;
            }
        }
    }

    /// Whether the background gives way to the sequence at `index` of the queue, or this sequence of it to others.
    pub(super) fn somebody_gives_way(&self, index: usize) -> bool {
        match self.queue[index].sequence.is_background() {
            true => self.running.foreground() > 0 || self.queue.oldest_foreground().is_some(),
            false => self.running.background() > 0,
        }
    }

    /// A sequence does not fit now. When nobody else runs it never will, which
    /// `RequestLimits` excludes
    /// for all that was submitted; better an error than a queue that stands still. What others wait for may hold
    /// blocks that a sequence of the background needs.
    pub(super) fn no_room(&mut self, index: usize) -> Outcome {
        if self.running.is_empty() && !self.somebody_gives_way(index) {
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
        // Nobody waits for the background.
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
