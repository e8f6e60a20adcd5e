//! How requests end: as they should, because nobody listens, or because something failed.

use kvik_cache::Cache;

use super::Scheduler;
use super::disk::Disk;
use super::job::{Job, JobId};
use crate::api::RequestError;
use crate::panics::contain;

impl Scheduler {
    /// Ends the requests whose listener has gone. What they computed stays in the cache.
    pub(super) fn drop_closed(&mut self) {
        let closed = self.results.jobs().filter(|(_, job)| job.is_closed());
        let closed: Vec<JobId> = closed.map(|(id, _)| id).collect();
        for id in closed {
            if let Some(job) = self.take_job(id) {
                let now = self.now();
                self.results.cancel(id, job, now);
            }
        }
    }

    /// Frees the sequences that have ended, and finishes the requests that have no others.
    pub(super) fn drop_ended(&mut self) {
        for (id, error) in self.results.take_failed() {
            self.fail(id, error);
        }
        while let Some(sequence) = self.running.pop_ended() {
            self.release(&sequence);
            self.spill_later(&sequence);
        }
        let ended = self.results.jobs().filter(|(_, job)| job.open == 0);
        let ended: Vec<JobId> = ended.map(|(id, _)| id).collect();
        for id in ended {
            if let Some(job) = self.take_job(id) {
                let now = self.now();
                self.results.finish(id, job, now);
            }
        }
    }

    /// Ends a request with an error.
    pub(super) fn fail(&mut self, id: JobId, error: RequestError) {
        if let Some(job) = self.take_job(id) {
            self.results.fail(id, job, error);
        }
    }

    /// Ends the requests that were never admitted.
    pub fn fail_queued(&mut self, error: &RequestError) {
        let queued: Vec<JobId> = self.queue.new_requests().map(|sequence| sequence.job).collect();
        queued.into_iter().for_each(|id| self.fail(id, error.clone()));
    }

    /// Ends all requests.
    pub fn fail_all(&mut self, error: &RequestError) {
        let all: Vec<JobId> = self.results.jobs().map(|(id, _)| id).collect();
        all.into_iter().for_each(|id| self.fail(id, error.clone()));
    }

    /// Brings order after a panic that no request could be blamed for: requests that run fail, those in
    /// the queue stay. The cache stays too when its invariants hold; blocks become known only
    /// after they are computed, so what a panic left half-written is not in it. Never panics.
    pub fn recover(&mut self, error: &RequestError) {
        if let Err(again) = contain(|| self.mend(error)) {
            tracing::error!(
                "what a panic left cannot be mended: {again}; the cache starts anew, without its disk"
            );
            self.start_over(error);
        }
    }

    /// Recovers if something that panicked has left the cache in disorder. Never panics.
    pub(crate) fn mistrust(&mut self, error: &RequestError) {
        if !contain(|| self.cache.check().is_ok()).unwrap_or(false) {
            self.recover(error);
        }
    }

    fn mend(&mut self, error: &RequestError) {
        let running = std::mem::take(&mut self.running);
        self.results.take_failed();
        self.drop_rests();
        self.drop_loads();
        let freed = contain(|| running.iter().for_each(|sequence| self.cache.abandon(sequence.id))).is_ok();
        let hit = self.results.jobs().filter(|(id, job)| self.queue.count_of(*id) != job.sequences());
        let hit: Vec<JobId> = hit.map(|(id, _)| id).collect();
        hit.into_iter().for_each(|id| self.fail(id, error.clone()));
        if !freed || self.cache.stats().sequences > 0 || self.cache.check().is_err() {
            // Namespaces are names in the old cache, so those who wait for it go as well.
            self.fail_all(error);
            self.renew_cache();
        }
    }

    /// Fails everybody and begins with an empty cache. Trusts nothing but the listeners.
    fn start_over(&mut self, error: &RequestError) {
        self.results.fail_all(error);
        let (queue, running) = (std::mem::take(&mut self.queue), std::mem::take(&mut self.running));
        let disk = self.disk.take();
        // What is in disorder may panic even when it is dropped.
        let _ = contain(|| drop((queue, running)));
        let _ = contain(|| drop(disk));
        self.renew_cache();
    }

    /// An empty cache, with the public prompts that are to be shared as soon as they are there again.
    fn renew_cache(&mut self) {
        self.owners.forget_told();
        let cache = Cache::new(self.cache_config).expect("the same settings worked before");
        let old = std::mem::replace(&mut self.cache, cache);
        let _ = contain(|| drop(old));
        self.roots.clear();
        self.leaving.clear();
        self.renew_public();
        self.disk.iter_mut().for_each(Disk::drop_wishes);
    }

    /// Removes a request with all its sequences.
    fn take_job(&mut self, id: JobId) -> Option<Job> {
        let job = self.results.remove(id)?;
        self.queue.drop_of(id);
        while let Some(sequence) = self.running.pop_of(id) {
            self.release(&sequence);
        }
        Some(job)
    }
}
