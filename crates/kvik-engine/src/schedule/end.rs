//! How requests end: finished, cancelled by the client, or failed.

use kvik_model::batch::{Runner, RunnerFault};

use super::Scheduler;
use super::disk::{Disk, DiskSetup};
use super::job::{Job, JobId};
use super::plan::Plan;
use super::running::Running;
use crate::api::RequestError;
use crate::panics::contain;

impl Scheduler {
    /// Ends the requests whose client has gone. Their blocks stay in the cache.
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

    /// Frees the sequences that have ended, and finishes the requests that have no open choice.
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

    /// Restores a consistent state after a panic that cannot be attributed to a request: running requests fail, those
    /// in the queue stay. The cache stays too if its invariants hold; blocks are published only after they are
    /// computed, so a half-written block is not in it. Never panics.
    pub fn recover(&mut self, error: &RequestError) {
        if let Err(again) = contain(|| self.mend(error)) {
            tracing::error!(
                "what a panic left cannot be mended: {again}; the cache starts anew, without its disk"
            );
            self.start_over(error);
        }
    }

    /// Fails the requests of a batch that was not computed; earlier blocks stay unless the fault has lost them.
    pub(super) fn fail_batch(&mut self, plan: &Plan, fault: &RunnerFault, runner: &mut dyn Runner) {
        for span in &plan.spans {
            self.results.fail_later(self.running[span.index].job, fault.clone().into());
        }
        self.restore(fault, runner);
    }

    /// Restores the runner after a fault. If blocks were lost, all requests fail and the cache starts empty: none of
    /// them is read again.
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

    /// Recovers if a panic has left the cache inconsistent. Never panics.
    pub(crate) fn recover_if_broken(&mut self, error: &RequestError) {
        if !contain(|| self.ram.cache.check().is_ok()).unwrap_or(false) {
            self.recover(error);
        }
    }

    fn mend(&mut self, error: &RequestError) {
        self.results.take_failed();
        self.disk.drop_unfinished(&mut self.ram);
        self.end_all_loads();
        // This includes sequences that a panic has lost: one about to start, or the target of a move of retained
        // positions.
        let freed = contain(|| self.ram.cache.abandon_all()).is_ok();
        self.running = Running::default();
        self.mend_drafts();
        let hit = self.results.jobs().filter(|(id, job)| self.queue.count_of(*id) != job.sequences());
        let hit: Vec<JobId> = hit.map(|(id, _)| id).collect();
        hit.into_iter().for_each(|id| self.fail(id, error.clone()));
        if !freed || self.ram.cache.check().is_err() {
            // Namespace ids belong to the old cache, so queued requests fail as well.
            self.fail_all(error);
            self.renew_cache();
        }
    }

    /// Fails all requests and starts with an empty cache. Relies on nothing but the event sinks.
    fn start_over(&mut self, error: &RequestError) {
        self.results.fail_all(error);
        let (queue, running) = (std::mem::take(&mut self.queue), std::mem::take(&mut self.running));
        let disk = std::mem::replace(&mut self.disk, Disk::new(DiskSetup::none(), self.config.auxiliary));
        // An inconsistent structure may panic even when it is dropped.
        let _ = contain(|| drop((queue, running)));
        let _ = contain(|| drop(disk));
        self.renew_cache();
    }

    /// Starts with an empty cache. Public prompts are shared again as soon as they are recomputed.
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
