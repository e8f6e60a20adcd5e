//! Admission: takes candidates from the queue, gives them blocks, and starts them. The [queue](super::queue) decides
//! their order.

use kvik_cache::SeqId;
use kvik_model::batch::Runner;

use super::growth::{Growth, grow, make_way};
use super::jobs::Jobs;
use super::kept_prefix::{admit_kept, choose_part};
use super::prefix::{Known, Reused};
use super::prefixes::Prefixes;
use super::queue::{Candidate, Facts, Queue};
use super::reuse::{HEADROOM, Newcomer, known, shared_prefill};
use super::start::{Outcome, no_room, release_for, start};
use super::tiers::{fetch, share_reused, spill_used_state};

/// Why foreground sequences were not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// No foreground sequence is left, or those left wait for another sequence's prefill or for a read.
    None,
    ForRoom,
}

/// Gives the running sequences the blocks that they need, then admits as many waiting sequences as there is room for. If
/// some had to be preempted, or choices are still to start, there is none. Background sequences are admitted last, if no
/// foreground sequence lacks room. Returns whether one does: it waits until others end.
pub(super) fn grow_and_admit(jobs: &mut Jobs, prefixes: &mut Prefixes, runner: &mut dyn Runner) -> bool {
    if grow(jobs, prefixes, runner) != Growth::Complete {
        return true;
    }
    if jobs.running.starts_more() {
        // Who is admitted now would take the places and blocks that these choices could have had in one step.
        return jobs.queue.oldest_foreground().is_some();
    }
    let waits = admit_foreground(jobs, prefixes, runner);
    match waits {
        Waits::None => admit_background(jobs, prefixes, runner),
        // A background sequence admitted now could evict blocks that the foreground will reuse.
        Waits::ForRoom => while make_way(jobs, prefixes) {},
    }
    waits == Waits::ForRoom
}

/// Admits foreground sequences; returns whether one is left that had no room.
fn admit_foreground(jobs: &mut Jobs, prefixes: &mut Prefixes, runner: &mut dyn Runner) -> Waits {
    if jobs.queue.oldest_foreground().is_none() {
        return Waits::None;
    }
    if jobs.is_full() {
        let has_candidates = with_facts(jobs, prefixes, false, Queue::has_candidates);
        return if has_candidates { Waits::ForRoom } else { Waits::None };
    }
    let mut passed = Vec::new();
    let mut candidates = with_facts(jobs, prefixes, false, Queue::candidates);
    while let Some(candidate) = candidates.next(|tenant| jobs.time(tenant, false)) {
        if jobs.is_full() {
            return Waits::ForRoom;
        }
        match try_admit(&candidate, &passed, jobs, prefixes, runner) {
            Outcome::NoRoom if !candidate.may_be_overtaken() => return Waits::ForRoom,
            Outcome::NoRoom => passed.push(candidate),
            Outcome::Admitted | Outcome::Held => {}
        }
    }
    if passed.is_empty() { Waits::None } else { Waits::ForRoom }
}

fn admit_background(jobs: &mut Jobs, prefixes: &mut Prefixes, runner: &mut dyn Runner) {
    let places = jobs.background_places();
    if places == 0 {
        return;
    }
    let first = |queue: &Queue, facts: &Facts<'_>| queue.background_candidates(places, facts);
    for candidate in with_facts(jobs, prefixes, true, first) {
        if let Outcome::NoRoom = try_admit(&candidate, &[], jobs, prefixes, runner) {
            return;
        }
    }
}

fn with_facts<T>(
    jobs: &Jobs,
    prefixes: &Prefixes,
    background: bool,
    decide: impl FnOnce(&Queue, &Facts<'_>) -> T,
) -> T {
    let facts = Facts {
        known: &|sequence| known(sequence, &prefixes.ram.cache, &jobs.running),
        time: &|tenant| jobs.time(tenant, background),
        loads: prefixes.disk.loads_left(),
        now: prefixes.now(),
    };
    decide(&jobs.queue, &facts)
}

/// Admits a candidate if possible, preempting the background for a foreground candidate.
fn try_admit(
    candidate: &Candidate,
    passed: &[Candidate],
    jobs: &mut Jobs,
    prefixes: &mut Prefixes,
    runner: &mut dyn Runner,
) -> Outcome {
    loop {
        let outcome = try_admit_beside(candidate, passed, jobs, prefixes, runner);
        let lacks_room = match outcome {
            Outcome::Admitted => false,
            Outcome::NoRoom => true,
            Outcome::Held => lacks_room_to_load(candidate, jobs, prefixes),
        };
        if !lacks_room || candidate.is_background() || !make_way(jobs, prefixes) {
            return outcome;
        }
    }
}

/// Whether a candidate waits because there are no blocks to load into.
fn lacks_room_to_load(candidate: &Candidate, jobs: &Jobs, prefixes: &Prefixes) -> bool {
    let index = jobs.queue.position(candidate).filter(|_| prefixes.disk.loads_left() > 0);
    index.is_some_and(|index| jobs.queue[index].fetch.waits_for_capacity())
}

/// Admits a candidate if possible, without preempting any running sequence.
fn try_admit_beside(
    candidate: &Candidate,
    passed: &[Candidate],
    jobs: &mut Jobs,
    prefixes: &mut Prefixes,
    runner: &mut dyn Runner,
) -> Outcome {
    let Some(index) = jobs.queue.position(candidate) else { return Outcome::Held };
    let tokens = candidate.known.tokens;
    choose_part(&mut jobs.queue[index].sequence, tokens, prefixes);
    if let Some(outcome) = admit_kept(index, passed, jobs, prefixes, runner) {
        return outcome;
    }
    let waiting = &mut jobs.queue[index];
    if waiting.sequence.chooses_part() {
        waiting.sequence.forgetting = None;
    }
    let source = shared_prefill(&waiting.sequence, tokens, &jobs.running, &prefixes.ram.auxiliary);
    if let Some(source) = source.and_then(|source| jobs.running.find(source)) {
        // It keeps the auxiliary state with which this one can continue where the two diverge.
        let common = source.common(&waiting.sequence).min(waiting.sequence.reuse_max());
        prefixes.ram.cache.mark(source.id, common);
    }
    if waiting.hold(source) || fetch(waiting, tokens, jobs.running.len(), prefixes) {
        return Outcome::Held;
    }
    let id = prefixes.ram.new_seq();
    let Some(reused) = take_blocks(index, id, candidate.known, jobs, prefixes, runner) else {
        return no_room(index, jobs, prefixes);
    };
    let waiting = jobs.queue.admit(index, reused.tokens, passed);
    start(waiting, id, reused, jobs, prefixes);
    share_reused(id, reused.tokens, &jobs.running, prefixes);
    spill_used_state(id, reused.tokens, &jobs.running, prefixes, runner);
    Outcome::Admitted
}

/// Allocates blocks for the sequence at `index` of the queue, reusing its known prefix.
fn take_blocks(
    index: usize,
    id: SeqId,
    candidate: Known,
    jobs: &mut Jobs,
    prefixes: &mut Prefixes,
    runner: &mut dyn Runner,
) -> Option<Reused> {
    if !jobs.has_place(&jobs.queue[index].sequence) {
        return None;
    }
    let (mut prefix, mut headroom) = (candidate, HEADROOM);
    loop {
        let newcomer = Newcomer { sequence: &jobs.queue[index].sequence, id, headroom };
        let reused = newcomer.take_blocks(prefix, &mut prefixes.ram, &jobs.running, runner);
        if reused.is_some() {
            return reused;
        }
        if release_for(index, jobs, prefixes) {
            prefix = known(&jobs.queue[index].sequence, &prefixes.ram.cache, &jobs.running);
        } else if jobs.running.is_empty() && headroom > 0 {
            // If it runs alone, blocks for its tokens suffice; its answer may be short.
            headroom = 0;
        } else {
            return None;
        }
    }
}
