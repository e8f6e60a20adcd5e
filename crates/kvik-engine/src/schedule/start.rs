//! Starts a waiting sequence that has its blocks, and explains how much of it was reused.

use kvik_cache::{SeqId, StopReason};

use super::disk::{Fetch, Spilled};
use super::jobs::Jobs;
use super::prefix::Reused;
use super::prefixes::Prefixes;
use super::queue::Waiting;
use super::reuse::is_coming;
use super::running::Running;
use super::sequence::{Sequence, Sharing};
use super::tiers::release_unneeded;
use crate::api::FinishReason;

/// The result of trying to admit a sequence.
pub(super) enum Outcome {
    Admitted,
    /// It waits for the prefill of another sequence, or for a read.
    Held,
    NoRoom,
}

/// Handles a sequence that does not fit now. If no other sequence runs it never will: `RequestLimits` excludes that for
/// every submitted request, but pins take room. An answer that has begun ends; otherwise an error is better than a stalled
/// queue. A background sequence may lack blocks that foreground requests hold.
pub(super) fn no_room(index: usize, jobs: &mut Jobs, prefixes: &mut Prefixes) -> Outcome {
    if jobs.running.is_empty() && !jobs.somebody_gives_way(index) {
        let sequence = &mut jobs.queue[index].sequence;
        if sequence.has_begun() {
            jobs.results.end_answer(sequence, FinishReason::Length, prefixes.now());
            jobs.queue.remove(index);
        } else {
            let (job, tokens) = (sequence.job, sequence.tokens.len());
            let error = prefixes.over_budget(sequence.tenant, tokens);
            jobs.fail(job, error, &mut prefixes.ram.cache);
        }
    }
    Outcome::NoRoom
}

/// Releases blocks that nothing needs now, for the sequence at `index` of the queue, unless others make way for it.
/// Returns whether there were any.
pub(super) fn release_for(index: usize, jobs: &mut Jobs, prefixes: &mut Prefixes) -> bool {
    !jobs.somebody_gives_way(index) && release_unneeded(jobs, prefixes)
}

/// Starts a sequence that has its blocks, `reused.tokens` of it stored already.
pub(super) fn start(waiting: Waiting, id: SeqId, reused: Reused, jobs: &mut Jobs, prefixes: &Prefixes) {
    let now = prefixes.now();
    let Waiting { mut sequence, fetch, .. } = waiting;
    let stop = why(&sequence, reused, fetch, &jobs.running, prefixes);
    let (tenant, background) = (sequence.tenant, sequence.is_background());
    let time = jobs.time(tenant, background);
    jobs.turns.of_mut(background).admitted(tenant, time);
    let results = &mut jobs.results;
    let job = results.job(sequence.job);
    let cached = reused.tokens.min(sequence.prompt_len).saturating_sub(sequence.furthest);
    job.report.cached_tokens += cached;
    job.report.loaded += fetch.loaded(reused.tokens).at_most(cached);
    if !sequence.started {
        // The eviction of the next block explains no other reason.
        let evicted = reused.evicted.filter(|_| stop == reused.stop);
        job.admitted(now, Reused { stop, evicted, ..reused });
        job.report.admitted_at = prefixes.ram.cache.now();
        job.prefill_progress(cached, sequence.prompt_len);
    }
    if job.is_waited_for() {
        results.counters.reused_tokens += cached as u64;
        if !sequence.started {
            results.counters.prompt_tokens += sequence.prompt_len as u64;
        }
    }
    sequence.id = id;
    sequence.started = true;
    (sequence.stored, sequence.began) = (reused.tokens, reused.tokens);
    sequence.spilled = Spilled::from_reuse(reused.tokens);
    sequence.furthest = sequence.furthest.max(reused.tokens);
    jobs.running.insert(sequence);
}

/// Why no more of a prompt is reused, as far as cache and disk know.
fn why(
    sequence: &Sequence,
    reused: Reused,
    fetch: Fetch,
    running: &Running,
    prefixes: &Prefixes,
) -> StopReason {
    let miss = || {
        let Sharing::Namespace(namespace) = sequence.sharing else { return None };
        let roots = prefixes.tenants.namespaces.roots(namespace);
        prefixes.disk.miss_reason(roots, &sequence.tokens, reused.stop, reused.tokens)
    };
    let coming = || {
        let is_coming = is_coming(sequence, reused.tokens, running, &prefixes.ram.auxiliary);
        is_coming.then_some(StopReason::StillComputing)
    };
    match reused.stop {
        stop if sequence.pools_all() && stop != StopReason::Private => StopReason::Pooled,
        _ if reused.tokens == sequence.observed_from() => StopReason::Retained,
        StopReason::Complete => StopReason::Complete,
        stop => {
            let unasked = || fetch.unasked_remote(stop);
            let verdict = fetch.verdict_for(reused.tokens);
            verdict.or_else(coming).or_else(miss).or_else(unasked).unwrap_or(stop)
        }
    }
}
