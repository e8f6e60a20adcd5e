//! How requests end: as they should, because nobody listens, or because something failed.

use super::Scheduler;
use super::disk::{Disk, DiskSetup};
use super::job::{Job, JobId};
use super::plan::Plan;
use super::running::Running;
use crate::api::RequestError;
use crate::model::batch::{Runner, RunnerFault};
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
            self.release_ended(&sequence);
            self.note_seen(&sequence);
        }
        let ended = self.results.jobs().filter(|(_, job)| job.open == 0);
        let ended: Vec<JobId> = ended.map(|(id, _)| id).collect();
        for id in ended {
            let now = self.now();
            if let Some(job) = self.take_job(id).filter(|_| !self.idle.is_job(id)) {
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

    /// The requests of a batch that was not computed fail; what was stored before stays, unless it is lost.
    pub(super) fn fail_batch(&mut self, plan: &Plan, fault: &RunnerFault, runner: &mut dyn Runner) {
        for span in &plan.spans {
            self.results.fail_later(self.running[span.index].job, fault.clone().into());
        }
        self.restore(fault, runner);
    }

    /// Has the runner go on after a fault. Where that has lost what blocks held, all requests fail and the cache is empty:
    /// nothing of it is read again.
    pub(super) fn restore(&mut self, fault: &RunnerFault, runner: &mut dyn Runner) {
        tracing::error!("{}", fault.message);
        if fault.blocks_lost {
            let error = fault.clone().into();
            self.recover(&error);
            self.fail_all(&error);
            self.renew_cache();
        }
        runner.restore();
    }

    /// Recovers if a panic has left the cache in disorder. Never panics.
    pub(crate) fn recover_if_broken(&mut self, error: &RequestError) {
        if !contain(|| self.ram.cache.check().is_ok()).unwrap_or(false) {
            self.recover(error);
        }
    }

    fn mend(&mut self, error: &RequestError) {
        self.results.take_failed();
        self.disk.drop_unfinished(&mut self.ram);
        self.end_all_loads();
        // Names that a panic has lost are among them: of a sequence that was about to start, or to move what it keeps.
        let freed = contain(|| self.ram.cache.abandon_all()).is_ok();
        self.running = Running::default();
        self.mend_drafts();
        let hit = self.results.jobs().filter(|(id, job)| self.queue.count_of(*id) != job.sequences());
        let hit: Vec<JobId> = hit.map(|(id, _)| id).collect();
        hit.into_iter().for_each(|id| self.fail(id, error.clone()));
        if !freed || self.ram.cache.check().is_err() {
            // Namespaces are names in the old cache, so the requests that wait for it fail as well.
            self.fail_all(error);
            self.renew_cache();
        }
    }

    /// Fails everybody and begins with an empty cache. Trusts nothing but the listeners.
    fn start_over(&mut self, error: &RequestError) {
        self.results.fail_all(error);
        let (queue, running) = (std::mem::take(&mut self.queue), std::mem::take(&mut self.running));
        let disk = std::mem::replace(&mut self.disk, Disk::new(DiskSetup::none(), self.config.beside));
        // What is in disorder may panic even when it is dropped.
        let _ = contain(|| drop((queue, running)));
        let _ = contain(|| drop(disk));
        self.renew_cache();
    }

    /// Begins with an empty cache. The public prompts are shared as soon as they are there again.
    fn renew_cache(&mut self) {
        self.ram.renew();
        self.tenants.reset(&mut self.ram.cache);
        self.kept_parts.clear();
        self.idle.clear();
        self.disk.drop_candidates();
        if let Some(model) = &mut self.draft_model {
            model.renew();
        }
    }

    /// Removes a request with all its sequences.
    pub(super) fn take_job(&mut self, id: JobId) -> Option<Job> {
        let job = self.results.remove(id)?;
        self.queue.drop_of(id);
        while let Some(sequence) = self.running.pop_of(id) {
            sequence.release(&mut self.ram.cache);
        }
        Some(job)
    }
}
