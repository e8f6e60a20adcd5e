//! Recovery: a consistent state after a panic that cannot be attributed to a request, and after a fault of the runner.

use kvik_model::batch::{Runner, RunnerFault};

use super::Scheduler;
use super::disk::{Disk, DiskSetup};
use super::running::Running;
use super::tiers::end_all_loads;
use crate::api::RequestError;
use crate::panics::contain;

/// Said to the requests that a panic ended: its own text may quote another tenant's request, and is only for the log.
const FAULT: &str = "a fault that may be another request's ended this one; send it again";

/// An error as it is said to requests that may not have caused it.
fn to_neighbours(error: &RequestError) -> RequestError {
    match error {
        RequestError::Internal(_) => RequestError::Internal(FAULT.to_owned()),
        error => error.clone(),
    }
}

impl Scheduler {
    /// Restores a consistent state after a panic that cannot be attributed to a request: running requests fail, those
    /// in the queue stay. The cache stays too if its invariants hold; blocks are published only after they are
    /// computed, so a half-written block is not in it. The prediction head drops what it holds. Never panics.
    pub fn recover(&mut self, error: &RequestError, runner: &mut dyn Runner) {
        self.recover_parts(error);
        let dropped = contain(|| runner.head().map(|head| head.follow_only(&|_| false)));
        if let Err(again) = dropped {
            tracing::error!("the prediction head cannot drop what it holds: {again}");
        }
    }

    fn recover_parts(&mut self, error: &RequestError) {
        let error = &to_neighbours(error);
        if let Err(again) = contain(|| self.mend(error)) {
            tracing::error!(
                "what a panic left cannot be mended: {again}; the cache starts anew, without its disk"
            );
            self.start_over(error);
        }
    }

    /// Recovers if a panic has left the cache inconsistent. Never panics.
    pub(crate) fn recover_if_broken(&mut self, error: &RequestError) {
        if !contain(|| self.cache().check().is_ok()).unwrap_or(false) {
            self.recover_parts(error);
        }
    }

    /// Restores the runner after a fault. If blocks were lost, all requests fail and the cache starts empty: none of
    /// them is read again.
    pub(super) fn restore(&mut self, fault: &RunnerFault, runner: &mut dyn Runner) {
        tracing::error!("{}", fault.message);
        if fault.blocks_lost {
            let error = fault.clone().into();
            self.recover(&error, runner);
            self.fail_all(&error);
            self.renew_cache();
        }
        runner.restore();
    }

    fn mend(&mut self, error: &RequestError) {
        let (jobs, prefixes) = (&mut self.jobs, &mut self.prefixes);
        jobs.results.take_failed();
        prefixes.disk.drop_unfinished(&mut prefixes.ram);
        end_all_loads(jobs, prefixes);
        // This includes sequences that a panic has lost: one about to start, or the target of a move of retained
        // positions.
        let freed = contain(|| prefixes.ram.cache.abandon_all()).is_ok();
        jobs.running = Running::default();
        prefixes.mend_drafts();
        jobs.fail_incomplete(error, &mut prefixes.ram.cache);
        if !freed || prefixes.ram.cache.check().is_err() {
            // Namespace ids belong to the old cache, so queued requests fail as well.
            self.fail_all(error);
            self.renew_cache();
        }
    }

    /// Fails all requests and starts with an empty cache. Relies on nothing but the event sinks.
    fn start_over(&mut self, error: &RequestError) {
        let jobs = &mut self.jobs;
        jobs.results.fail_all(error);
        let (queue, running) = (std::mem::take(&mut jobs.queue), std::mem::take(&mut jobs.running));
        let none = Disk::new(DiskSetup::none(), self.config.auxiliary);
        let disk = std::mem::replace(&mut self.prefixes.disk, none);
        // An inconsistent structure may panic even when it is dropped.
        let _ = contain(|| drop((queue, running)));
        let _ = contain(|| drop(disk));
        self.renew_cache();
    }

    /// Starts with an empty cache.
    fn renew_cache(&mut self) {
        self.prefixes.renew();
        self.idle.clear();
    }
}
