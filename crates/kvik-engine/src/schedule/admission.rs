//! Admission: takes candidates from the queue, gives them blocks, and starts them. Who is next the
//! [queue](super::queue) decides.

use kvik_cache::{BLOCK_POSITIONS, SeqId, StopReason, TenantId, blocks_for};

use super::Scheduler;
use super::disk::{Fetched, Spilled};
use super::queue::{Candidate, Candidates, Facts, Waiting};
use super::reuse::{HEADROOM, Known, Newcomer, Reused, shared_prefill};
use super::sequence::{Sequence, Sharing};
use crate::api::RequestError;
use crate::model::batch::Runner;

enum Outcome {
    Admitted,
    Held,
    NoRoom,
}

impl Scheduler {
    /// Admits waiting sequences, as many as there is room for.
    pub(super) fn admit(&mut self, runner: &mut dyn Runner) {
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
            known: &|sequence| Known::of(sequence, &self.cache, &self.running),
            time: &|tenant| self.time(tenant),
            loads: self.load_places(),
            now: self.now(),
        })
    }

    /// A tenant's virtual time, with what its running sequences are still to get.
    fn time(&self, tenant: TenantId) -> f64 {
        self.turns.time(tenant, self.running.missing(tenant))
    }

    fn try_admit(&mut self, candidate: &Candidate, passed: &[Candidate], runner: &mut dyn Runner) -> Outcome {
        let Some(index) = self.queue.position(candidate) else { return Outcome::Held };
        let known = candidate.known;
        let source = shared_prefill(&self.queue[index].sequence, known.tokens, &self.running);
        if self.queue[index].hold(source) || self.fetch(index, known.tokens) {
            return Outcome::Held;
        }
        let id = self.new_seq();
        let Some(reused) = self.take_blocks(index, id, known, runner) else { return self.no_room(index) };
        let waiting = self.queue.admit(index, passed);
        self.start(waiting, id, reused);
        Outcome::Admitted
    }

    /// Blocks for the sequence at `index` of the queue, with what is known of it.
    fn take_blocks(
        &mut self,
        index: usize,
        id: SeqId,
        mut known: Known,
        runner: &mut dyn Runner,
    ) -> Option<Reused> {
        let mut headroom = HEADROOM;
        loop {
            let newcomer = Newcomer { sequence: &self.queue[index].sequence, id, headroom };
            let reused = newcomer.take_blocks(known, &mut self.cache, &self.running, runner);
            if reused.is_some() {
                return reused;
            }
            if self.let_disk_go() {
                known = Known::of(&self.queue[index].sequence, &self.cache, &self.running);
            } else if self.running.is_empty() && headroom > 0 {
                // Alone it may do with what its tokens need, and its answer may be short.
                headroom = 0;
            } else {
                return None;
            }
        }
    }

    /// A sequence does not fit now. When nobody else runs it never will, which `Limits` excludes
    /// for all that was submitted; better an error than a queue that stands still.
    fn no_room(&mut self, index: usize) -> Outcome {
        if self.running.is_empty() {
            let sequence = &self.queue[index].sequence;
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
