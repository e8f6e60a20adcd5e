//! The open requests and their sequences: which of them wait, which run, and whose turn is next.
//!
//! A request is in `results` until it ends. Each of its sequences is in `queue` while it has no blocks, and in `running`
//! while it has some. So a preempted sequence moves from one to the other, and a request that ends leaves all of them.

use std::sync::Arc;
use std::time::Duration;

use kvik_cache::{Cache, Lifetime, NamespaceId, TenantId};
use kvik_text::stream::Vocabulary;

use super::disk::Spilled;
use super::job::{Job, JobId};
use super::queue::Queue;
use super::results::Results;
use super::running::Running;
use super::sequence::{Sequence, Sharing};
use super::turns::AllTurns;
use crate::api::RequestError;

/// Maximum number of background sequences that run at the same time.
const BACKGROUND_MAX: usize = 2;

/// The requests of one model that have not ended.
pub(super) struct Jobs {
    /// Sequences without blocks.
    pub(super) queue: Queue,
    /// Sequences with blocks.
    pub(super) running: Running,
    /// Virtual times, which decide which tenant is next.
    pub(super) turns: AllTurns,
    /// The requests of all sequences.
    pub(super) results: Results,
    /// What was spilled of sequences that were cut short, and their lifetimes, until the disk has noted their ends.
    pub(super) cut_short: Vec<(Spilled, Lifetime)>,
    /// Maximum number of foreground sequences that run at the same time.
    parallel_max: usize,
}

impl Jobs {
    /// No requests yet.
    pub(super) fn new(parallel_max: usize, vocabulary: Arc<Vocabulary>) -> Jobs {
        Jobs {
            queue: Queue::default(),
            running: Running::default(),
            turns: AllTurns::default(),
            results: Results::new(vocabulary),
            cut_short: Vec::new(),
            parallel_max,
        }
    }

    /// Whether a foreground sequence waits or runs.
    pub(super) fn has_foreground(&self) -> bool {
        self.running.foreground() > 0 || self.queue.oldest_foreground().is_some()
    }

    /// Whether the maximum number of foreground sequences run.
    pub(super) fn is_full(&self) -> bool {
        self.running.foreground() >= self.parallel_max
    }

    /// Whether one more sequence like this may run. The background has one admission slot in addition to
    /// `parallel_max`, so that it makes progress even when the others are always taken.
    pub(super) fn has_place(&self, sequence: &Sequence) -> bool {
        let is_left = self.running.len() <= self.parallel_max;
        match sequence.is_background() {
            true => self.background_places() > 0,
            false => is_left && !self.is_full(),
        }
    }

    /// Number of further background sequences that may run.
    pub(super) fn background_places(&self) -> usize {
        let left = (self.parallel_max + 1).saturating_sub(self.running.len());
        BACKGROUND_MAX.saturating_sub(self.running.background()).min(left)
    }

    /// Whether the background makes way for the sequence at `index` of the queue, or, if that is a background sequence,
    /// whether it makes way for others.
    pub(super) fn somebody_gives_way(&self, index: usize) -> bool {
        match self.queue[index].sequence.is_background() {
            true => self.has_foreground(),
            false => self.running.background() > 0,
        }
    }

    /// A tenant's virtual time in the foreground, including what its running sequences still have to compute, or in the
    /// background.
    pub(super) fn time(&self, tenant: TenantId, background: bool) -> f64 {
        let promised = if background { 0 } else { self.running.missing(tenant) };
        self.turns.of(background).time(tenant, promised)
    }

    /// Charges computed rows of a running sequence to its tenant; those of idle time, which nobody asked for, to none.
    pub(super) fn charge(&mut self, index: usize, rows: usize) {
        let sequence = &self.running[index];
        if !self.results.job(sequence.job).in_idle_time {
            self.turns.of_mut(sequence.is_background()).charge(sequence.tenant, rows);
        }
    }

    /// Whether a tenant has a sequence in the background or in the foreground.
    fn serves(&self, tenant: TenantId, background: bool) -> bool {
        let mut all = self.queue.sequences().chain(self.running.iter());
        all.any(|sequence| sequence.tenant == tenant && sequence.is_background() == background)
    }

    /// The sequences that share blocks in one of these namespaces.
    pub(super) fn sharing_in<'a>(
        &'a mut self,
        namespaces: &'a [NamespaceId],
    ) -> impl Iterator<Item = &'a mut Sequence> {
        let sequences = self.queue.sequences_mut().chain(self.running.iter_mut());
        sequences
            .filter(|sequence| matches!(sequence.sharing, Sharing::Namespace(id) if namespaces.contains(&id)))
    }

    /// Adds a sequence that waits. A tenant that had none gets no credit for its pause.
    pub(super) fn enqueue(&mut self, sequence: Sequence) {
        let (tenant, background) = (sequence.tenant, sequence.is_background());
        if !self.serves(tenant, background) {
            self.turns.of_mut(background).come_back(tenant);
        }
        self.queue.insert(sequence);
    }

    /// Releases the blocks of a sequence that no longer runs, and queues it; it restarts when there is room.
    pub(super) fn preempt(&mut self, mut sequence: Sequence, cache: &mut Cache) {
        self.results.counters.preemptions += 1;
        self.release(&sequence, cache);
        sequence.restart();
        self.queue.insert(sequence);
    }

    /// Preempts the youngest sequence.
    pub(super) fn preempt_youngest(&mut self, cache: &mut Cache) {
        if let Some(sequence) = self.running.pop_youngest() {
            self.preempt(sequence, cache);
        }
    }

    /// Removes a request with all its sequences.
    pub(super) fn take(&mut self, id: JobId, cache: &mut Cache) -> Option<Job> {
        let job = self.results.remove(id)?;
        self.queue.drop_of(id);
        while let Some(sequence) = self.running.pop_of(id) {
            self.release(&sequence, cache);
        }
        Some(job)
    }

    /// Releases the blocks of a sequence that has not ended by itself.
    fn release(&mut self, sequence: &Sequence, cache: &mut Cache) {
        sequence.release(cache);
        if sequence.publishes_in().is_some() {
            self.cut_short.push((sequence.spilled, sequence.lifetime));
        }
    }

    /// Ends the requests whose client has gone. Their blocks stay in the cache.
    pub(super) fn cancel_closed(&mut self, now: Duration, cache: &mut Cache) {
        for id in self.ids(|_, job| job.is_closed()) {
            if let Some(job) = self.take(id, cache) {
                self.results.cancel(id, job, now);
            }
        }
    }

    /// Finishes the requests that have no open choice; those for which `has_client` is false just end.
    pub(super) fn finish_ended(
        &mut self,
        has_client: impl Fn(JobId) -> bool,
        now: Duration,
        cache: &mut Cache,
    ) {
        for id in self.ids(|_, job| job.open == 0) {
            if let Some(job) = self.take(id, cache).filter(|_| has_client(id)) {
                self.results.finish(id, job, now);
            }
        }
    }

    /// Ends a request with an error.
    pub(super) fn fail(&mut self, id: JobId, error: RequestError, cache: &mut Cache) {
        if let Some(job) = self.take(id, cache) {
            self.results.fail(id, job, error);
        }
    }

    /// Ends the requests that were never admitted.
    pub(super) fn fail_queued(&mut self, error: &RequestError, cache: &mut Cache) {
        let queued: Vec<JobId> = self.queue.new_requests().map(|sequence| sequence.job).collect();
        queued.into_iter().for_each(|id| self.fail(id, error.clone(), cache));
    }

    /// Ends the requests of which not all sequences wait.
    pub(super) fn fail_incomplete(&mut self, error: &RequestError, cache: &mut Cache) {
        for id in self.ids(|id, job| self.queue.count_of(id) != job.sequences()) {
            self.fail(id, error.clone(), cache);
        }
    }

    /// Ends all requests.
    pub(super) fn fail_all(&mut self, error: &RequestError, cache: &mut Cache) {
        self.ids(|_, _| true).into_iter().for_each(|id| self.fail(id, error.clone(), cache));
    }

    /// The requests that `are` meant, oldest first.
    fn ids(&self, are: impl Fn(JobId, &Job) -> bool) -> Vec<JobId> {
        self.results.jobs().filter(|&(id, job)| are(id, job)).map(|(id, _)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use kvik_cache::{CacheConfig, Namespaces, Policy, SeqId};

    use super::*;
    use crate::api::{Event, EventSink};

    /// A client that has gone, or not.
    struct Client {
        is_gone: bool,
    }

    impl EventSink for Client {
        fn send(&mut self, _: Event) -> bool {
            true
        }

        fn is_closed(&self) -> bool {
            self.is_gone
        }
    }

    fn cache() -> (Cache, NamespaceId) {
        let config = CacheConfig { blocks: 16, policy: Policy::Lru, ghosts: 0, pinned_max: 0 };
        let namespaces = Namespaces { model: [0; 32], kv_format: "f32/f32", adapter: None };
        let mut cache = Cache::new(config).unwrap();
        let namespace = cache.namespace(&namespaces.shared([0; 16]));
        (cache, namespace)
    }

    fn jobs(parallel_max: usize) -> Jobs {
        Jobs::new(parallel_max, Arc::new(Vocabulary::new::<&[u8]>([])))
    }

    /// Opens a request and lets its sequence run, with two blocks of the cache.
    fn run(jobs: &mut Jobs, cache: &mut Cache, namespace: NamespaceId, background: bool) -> JobId {
        let job = jobs.results.open(Box::new(Client { is_gone: false }), 20, 1, Duration::ZERO);
        let sequence = Sequence::fake_in(background, TenantId(0), vec![7; 20]);
        let id = SeqId(job.0 + 1);
        cache.lease(id, namespace, &[]);
        cache.reserve(id, 20).unwrap();
        jobs.running.insert(Sequence { id, job, sharing: Sharing::Namespace(namespace), ..sequence });
        job
    }

    #[test]
    fn the_background_has_a_place_of_its_own() {
        let ((mut cache, namespace), mut jobs) = (cache(), jobs(1));
        let fake = |background| Sequence::fake_in(background, TenantId(0), vec![7; 5]);
        let places = |jobs: &Jobs| [false, true].map(|background| jobs.has_place(&fake(background)));
        assert_eq!(places(&jobs), [true, true]);
        run(&mut jobs, &mut cache, namespace, true);
        assert_eq!(places(&jobs), [true, true], "two of the background may run where nobody else does");
        run(&mut jobs, &mut cache, namespace, false);
        assert_eq!((places(&jobs), jobs.is_full()), ([false, false], true));
    }

    #[test]
    fn a_preempted_sequence_waits_without_blocks_and_ends_with_its_request() {
        let ((mut cache, namespace), mut jobs) = (cache(), jobs(4));
        let ids = [0, 1].map(|_| run(&mut jobs, &mut cache, namespace, false));
        let free = cache.stats().free;
        jobs.preempt_youngest(&mut cache);
        assert_eq!((jobs.running.len(), jobs.queue.count_of(ids[1])), (1, 1));
        assert_eq!((cache.stats().free, jobs.results.counters.preemptions), (free + 2, 1));
        jobs.fail_incomplete(&RequestError::Stopping, &mut cache);
        assert!(jobs.running.is_empty(), "its sequence runs, so not all of them wait");
        assert!(jobs.results.has(ids[1]) && !jobs.results.has(ids[0]));
        jobs.fail_all(&RequestError::Stopping, &mut cache);
        assert!(jobs.queue.is_empty() && jobs.results.is_empty() && !jobs.has_foreground());
        assert_eq!(cache.stats().free, 16);
    }

    #[test]
    fn only_rows_of_the_foreground_count_there() {
        let ((mut cache, namespace), mut jobs) = (cache(), jobs(4));
        let ids = [false, true, false].map(|background| run(&mut jobs, &mut cache, namespace, background));
        jobs.results.job(ids[2]).in_idle_time = true;
        (0..3).for_each(|index| jobs.charge(index, 10));
        let times = [false, true].map(|background| jobs.turns.of(background).time(TenantId(0), 0));
        assert_eq!(times, [10.0, 10.0], "what idle time computes is charged to nobody");
    }

    #[test]
    fn requests_whose_clients_have_gone_are_cancelled() {
        let ((mut cache, namespace), mut jobs) = (cache(), jobs(4));
        let stays = run(&mut jobs, &mut cache, namespace, false);
        let gone = jobs.results.open(Box::new(Client { is_gone: true }), 5, 1, Duration::ZERO);
        jobs.enqueue(Sequence { job: gone, ..Sequence::fake(TenantId(1), vec![7; 5]) });
        jobs.cancel_closed(Duration::ZERO, &mut cache);
        assert!(jobs.results.has(stays) && !jobs.results.has(gone) && jobs.queue.is_empty());
        assert_eq!(jobs.results.counters.cancelled, 1);
    }
}
