//! How requests end: as they should, because nobody listens, or because something failed.

use std::time::Duration;

use kvik_cache::{Cache, StopReason};

use super::Scheduler;
use super::disk::Disk;
use super::job::{Job, JobId};
use crate::api::RequestError;
use crate::panics::contain;

impl Scheduler {
    /// Ends the requests whose listener has gone. What they computed stays in the cache.
    pub(super) fn drop_closed(&mut self) {
        let closed = self.jobs.iter().filter(|(_, job)| job.is_closed());
        let closed: Vec<JobId> = closed.map(|(&id, _)| id).collect();
        for id in closed {
            if let Some(job) = self.take_job(id) {
                self.counters.cancelled += 1;
                tracing::info!("request {} cancelled: {}", id.0, summary(&job, self.now()));
                job.cancelled();
            }
        }
    }

    /// Frees the sequences that have ended, and concludes the requests that have no others.
    pub(super) fn drop_ended(&mut self) {
        for (id, error) in std::mem::take(&mut self.doomed) {
            self.fail(id, error);
        }
        let mut index = 0;
        while index < self.running.len() {
            if self.running[index].ended.is_none() {
                index += 1;
                continue;
            }
            let sequence = self.running.remove(index);
            self.release(&sequence);
            self.spill_later(&sequence);
        }
        let ended = self.jobs.iter().filter(|(_, job)| job.open == 0);
        let ended: Vec<JobId> = ended.map(|(&id, _)| id).collect();
        ended.into_iter().for_each(|id| self.conclude(id));
    }

    /// Ends a request whose choices have all ended.
    fn conclude(&mut self, id: JobId) {
        let Some(job) = self.take_job(id) else { return };
        let now = self.now();
        let took = now.saturating_sub(job.times.admitted.unwrap_or(now));
        self.service = Some(self.service.map_or(took, |mean| (mean * 7 + took) / 8));
        self.counters.completed += 1;
        tracing::info!("request {}: {}", id.0, summary(&job, now));
        self.concluded.push(job);
    }

    /// Ends a request with an error.
    pub(super) fn fail(&mut self, id: JobId, error: RequestError) {
        if let Some(job) = self.take_job(id) {
            self.counters.failed += 1;
            tracing::warn!("request {} failed: {error}", id.0);
            job.failed(error);
        }
    }

    /// Ends the requests that were never admitted.
    pub fn fail_queued(&mut self, error: &RequestError) {
        let queued = self.waiting.iter().filter(|waiting| waiting.is_new());
        let queued: Vec<JobId> = queued.map(|waiting| waiting.sequence.job).collect();
        queued.into_iter().for_each(|id| self.fail(id, error.clone()));
    }

    /// Ends all requests.
    pub fn fail_all(&mut self, error: &RequestError) {
        let all: Vec<JobId> = self.jobs.keys().copied().collect();
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
        self.forks.clear();
        self.doomed.clear();
        self.drop_rests();
        self.drop_loads();
        let freed = contain(|| running.iter().for_each(|sequence| self.cache.abandon(sequence.id))).is_ok();
        let queued = |id: JobId| self.waiting.iter().filter(|w| w.sequence.job == id).count();
        let hit = self.jobs.iter().filter(|(id, job)| queued(**id) != job.sequences());
        let hit: Vec<JobId> = hit.map(|(&id, _)| id).collect();
        hit.into_iter().for_each(|id| self.fail(id, error.clone()));
        if !freed || self.cache.stats().sequences > 0 || self.cache.check().is_err() {
            // Namespaces are names in the old cache, so those who wait for it go as well.
            self.fail_all(error);
            self.renew_cache();
        }
    }

    /// Fails everybody and begins with an empty cache. Trusts nothing but the listeners.
    fn start_over(&mut self, error: &RequestError) {
        for (_, job) in std::mem::take(&mut self.jobs) {
            self.counters.failed += 1;
            job.failed(error.clone());
        }
        let (waiting, running) = (std::mem::take(&mut self.waiting), std::mem::take(&mut self.running));
        let (forks, disk) = (std::mem::take(&mut self.forks), self.disk.take());
        self.doomed.clear();
        // What is in disorder may panic even when it is dropped.
        let _ = contain(|| drop((waiting, running, forks)));
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
        let job = self.jobs.remove(&id)?;
        self.waiting.retain(|waiting| waiting.sequence.job != id);
        self.forks.retain(|fork| fork.child.job != id);
        while let Some(index) = self.running.iter().position(|sequence| sequence.job == id) {
            let sequence = self.running.remove(index);
            self.release(&sequence);
        }
        Some(job)
    }
}

/// One line about a request, for people.
fn summary(job: &Job, now: Duration) -> String {
    let report = &job.report;
    let reuse = report.cache.map_or("not admitted", why);
    format!(
        "prefill {} tokens, {} reused ({reuse}), {:.1} ms, {:.0} tok/s; \
         generated {} tokens, {:.1} tok/s; queued {:.1} ms, total {:.1} ms",
        report.prompt_tokens,
        report.cached_tokens,
        millis(report.prefill),
        rate(report.computed_tokens, report.prefill),
        report.generated_tokens,
        rate(report.generated_tokens.saturating_sub(1), report.decode),
        millis(report.queued),
        millis(now.saturating_sub(job.times.submitted)),
    )
}

fn why(stop: StopReason) -> &'static str {
    match stop {
        StopReason::Complete => "all known",
        StopReason::FirstSeen => "the rest is new",
        StopReason::Diverged => "then it differs from what is known",
        StopReason::Evicted => "the rest was evicted",
        _ => "the rest is not known",
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn rate(tokens: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}
