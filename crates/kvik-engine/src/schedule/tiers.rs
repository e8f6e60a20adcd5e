//! The tiers below RAM in a step, for running and for waiting sequences.

use kvik_cache::{SeqId, StateId};
use kvik_model::batch::Runner;

use super::disk::{Offered, StateBehind, Stored};
use super::jobs::Jobs;
use super::prefixes::Prefixes;
use super::queue::{Queue, Waiting};
use super::reuse::known;
use super::running::Running;
use super::sequence::{Sequence, Sharing};

/// Number of waiting prompts that are looked up in the shared store before their turn.
const LOOK_AHEAD: usize = 32;
/// A state counts as that of the prompt's end if it is at most this many tokens before it.
const PROMPT_END: usize = 32;

/// Processes completed reads and writes, keeps the disk busy, and ends the waits that are over.
pub(super) fn collect_loads(jobs: &mut Jobs, prefixes: &mut Prefixes, runner: &mut dyn Runner) {
    let (disk, context) = prefixes.loading(jobs.running.len());
    let now = context.now;
    context.ram.settle(runner);
    disk.collect(&mut context.ram.cache, runner);
    jobs.queue.fetches_mut().for_each(|fetch| disk.end_wait(fetch, now));
    disk.forget_answers();
    let ended = disk.ended_loads(|load| jobs.queue.awaits_load(load), now);
    end_loads(&ended, jobs, prefixes);
    prefixes.drop_erased();
}

/// Looks up the prompts of waiting requests in the shared store, also of those whose turn is far off.
pub(super) fn look_ahead(jobs: &mut Jobs, prefixes: &mut Prefixes) {
    if !prefixes.disk.has_remote() {
        return;
    }
    for index in 0..jobs.queue.foreground().len().min(LOOK_AHEAD) {
        let Waiting { sequence, fetch, .. } = &mut jobs.queue[index];
        let Sharing::Namespace(namespace) = sequence.sharing else { continue };
        if sequence.chooses_part() || !fetch.is_unasked() {
            continue;
        }
        let known = known(sequence, &prefixes.ram.cache, &jobs.running).tokens;
        let (disk, context) = prefixes.loading(jobs.running.len());
        disk.look_up_remote(fetch, sequence.wanted(namespace, known), &context);
    }
}

/// Whether a waiting sequence, of which `known` tokens are in RAM, waits for the disk while `running` sequences run.
pub(super) fn fetch(waiting: &mut Waiting, known: usize, running: usize, prefixes: &mut Prefixes) -> bool {
    let Waiting { sequence, fetch, .. } = waiting;
    let Sharing::Namespace(namespace) = sequence.sharing else { return false };
    let (disk, mut context) = prefixes.loading(running);
    disk.fetch(fetch, sequence.wanted(namespace, known), &mut context)
}

/// Starts to load what was hot before the start, if no request waits.
pub(super) fn prefetch(jobs: &Jobs, prefixes: &mut Prefixes) {
    if jobs.queue.is_empty() {
        let (disk, mut context) = prefixes.loading(jobs.running.len());
        disk.prefetch(&mut context);
    }
}

/// Ends these loads with what has arrived by now. Returns whether there were any.
fn end_loads(loads: &[SeqId], jobs: &mut Jobs, prefixes: &mut Prefixes) -> bool {
    let (disk, mut context) = prefixes.loading(jobs.running.len());
    for &load in loads {
        if let Some(ended) = disk.end_load(load, &mut context) {
            jobs.queue.fetches_mut().for_each(|fetch| fetch.end_with(&ended));
        }
    }
    !loads.is_empty()
}

/// Ends the loads that `end`, with what has arrived by now. Returns whether there were any.
fn end_those(end: impl Fn(&Queue, SeqId) -> bool, jobs: &mut Jobs, prefixes: &mut Prefixes) -> bool {
    let mut loads = prefixes.disk.loads();
    loads.retain(|&load| end(&jobs.queue, load));
    end_loads(&loads, jobs, prefixes)
}

/// Ends all loads with what has arrived by now. Returns whether there were any.
pub(super) fn end_all_loads(jobs: &mut Jobs, prefixes: &mut Prefixes) -> bool {
    end_those(|_, _| true, jobs, prefixes)
}

/// Ends the loads that only the background waits for. Returns whether there were any.
pub(super) fn end_background_loads(jobs: &mut Jobs, prefixes: &mut Prefixes) -> bool {
    end_those(Queue::is_background_load, jobs, prefixes)
}

/// Ends the loads that no request waits for.
pub(super) fn end_unawaited_loads(jobs: &mut Jobs, prefixes: &mut Prefixes) {
    end_those(|queue, load| !queue.awaits_load(load), jobs, prefixes);
}

/// Releases blocks that nothing needs now, to make room for running sequences: first those of prompts that are no longer
/// public, then those that are only written to the disk, then, if at most one sequence runs, those that are read from it.
/// Returns whether there were any.
pub(super) fn release_unneeded(jobs: &mut Jobs, prefixes: &mut Prefixes) -> bool {
    if release_retired(jobs, prefixes) {
        return true;
    }
    let released = prefixes.disk.drop_unfinished(&mut prefixes.ram)
        || (jobs.running.len() <= 1 && end_all_loads(jobs, prefixes));
    if released {
        // These blocks may have been the last use of a prompt that is no longer public.
        release_retired(jobs, prefixes);
    }
    released
}

/// Releases blocks of prompts that are no longer public and that nothing uses; returns whether there were any.
pub(super) fn release_retired(jobs: &Jobs, prefixes: &mut Prefixes) -> bool {
    prefixes.drop_retired(|namespace| jobs.queue.awaits(namespace))
}

/// Offers the reused prefix of a sequence that begins: other nodes may want it.
pub(super) fn share_reused(id: SeqId, reused: usize, running: &Running, prefixes: &mut Prefixes) {
    let sequence = running.find(id).filter(|_| reused > 0 && prefixes.disk.has_remote());
    let Some(stored) = sequence.and_then(|sequence| sequence.stored_blocks(false)) else { return };
    let Stored { namespace, tokens, lifetime, .. } = stored;
    let tokens = &tokens[..tokens.len().min(reused)];
    prefixes.share(&Offered { namespace, tokens, ttl: lifetime.ttl, is_reused: true });
}

/// Offers the blocks of a sequence that has ended to other nodes: its prompt for the same request, and all of it for a
/// continuation.
fn share_ended(sequence: &Sequence, prefixes: &mut Prefixes) {
    let Some(stored) = sequence.stored_blocks(false).filter(|_| prefixes.disk.shares_all()) else { return };
    let Stored { namespace, tokens, prompt, lifetime, .. } = stored;
    for end in [prompt.len().min(tokens.len()), tokens.len()] {
        let tokens = &tokens[..end];
        prefixes.share(&Offered { namespace, tokens, ttl: lifetime.ttl, is_reused: false });
    }
}

/// Spills what the running sequences have completed, and everything of those that end; then drops expired blocks, and
/// offers pending copies to other nodes unless a foreground request waits.
pub(super) fn spill(jobs: &mut Jobs, prefixes: &mut Prefixes, runner: &dyn Runner) {
    let now = prefixes.now();
    for (mut spilled, lifetime) in jobs.cut_short.drain(..) {
        prefixes.disk.note_end(&mut spilled, lifetime, now);
    }
    prefixes.disk.spill_leaving(&mut prefixes.ram, now);
    prefixes.disk.spill_unfinished(&mut prefixes.ram, &prefixes.tenants.namespaces, runner, now);
    let (disk, context) = prefixes.spilling(runner);
    for sequence in jobs.running.iter_mut() {
        let (ended, mut spilled) = (sequence.ended.is_some(), sequence.spilled);
        if let Some(stored) = sequence.stored_blocks(ended) {
            disk.spill(&mut spilled, &stored, ended, context);
            sequence.spilled = spilled;
        }
    }
    disk.sweep(now);
    let shared = disk.share_some(jobs.queue.oldest_foreground().is_some(), context);
    shared.into_iter().for_each(|seq| prefixes.ram.cache.abandon(seq));
}

/// Frees the auxiliary state that running sequences no longer need, once the disk has a copy. Spilled are the final
/// states of ending sequences, and of the saved ones those at the end of prompts. Other saved states are for forks that
/// may never come; they follow when [one is used](spill_used_state).
pub(super) fn leave_behind(running: &Running, prefixes: &mut Prefixes, runner: &dyn Runner) {
    let cache = &mut prefixes.ram.cache;
    running.iter().for_each(|sequence| cache.advance(sequence.id, sequence.stored));
    let kept = cache.take_kept_states();
    let ended = running.iter().filter(|sequence| sequence.ended.is_some());
    let ended = ended.filter_map(|sequence| {
        let state = cache.state(sequence.id)?;
        Some((sequence.id, sequence.stored, state))
    });
    let states: Vec<(SeqId, usize, StateId)> = kept.into_iter().chain(ended).collect();
    spill_waiting_states(prefixes, runner);
    for (id, positions, state) in states {
        let is_late = |sequence: &&Sequence| positions + PROMPT_END >= sequence.prompt_len;
        if let Some(sequence) = running.find(id).filter(is_late) {
            spill_state(sequence, positions, state, prefixes, runner);
        }
    }
}

/// Continues to write states, and begins with those that had to wait, as far as RAM still has them.
fn spill_waiting_states(prefixes: &mut Prefixes, runner: &dyn Runner) {
    let now = prefixes.now();
    let Prefixes { ram, disk, tenants, .. } = prefixes;
    disk.write_states(now);
    while let Some(waiting) = disk.next_waiting_state(now) {
        let behind = waiting.behind();
        let is_there = ram.cache.has_namespace(behind.namespace);
        let state = is_there.then(|| ram.cache.state_after(behind.namespace, behind.tokens)).flatten();
        if let Some(state) = state {
            disk.spill_state(&behind, || read_state(state, runner), &tenants.namespaces, now);
        }
    }
}

fn read_state(state: StateId, runner: &dyn Runner) -> Vec<u8> {
    let mut bytes = vec![0; runner.state_bytes()];
    runner.read_state(state, &mut bytes);
    bytes
}

/// Spills the state with which a sequence continues after `positions`, before it moves on: a prefix that was reused may
/// be reused after a restart.
pub(super) fn spill_used_state(
    id: SeqId,
    positions: usize,
    running: &Running,
    prefixes: &mut Prefixes,
    runner: &dyn Runner,
) {
    let state = prefixes.ram.cache.state(id).filter(|_| positions > 0);
    if let (Some(state), Some(sequence)) = (state, running.find(id)) {
        spill_state(sequence, positions, state, prefixes, runner);
    }
}

/// Spills the state of a running sequence after `positions`, if the disk takes one now.
fn spill_state(
    sequence: &Sequence,
    positions: usize,
    state: StateId,
    prefixes: &mut Prefixes,
    runner: &dyn Runner,
) {
    let Some(namespace) = sequence.publishes_in().filter(|_| prefixes.disk.takes_states()) else { return };
    let (tokens, lifetime) = (&sequence.tokens[..positions], sequence.lifetime);
    let is_pinned = || lifetime.pin || prefixes.ram.cache.is_pinned(namespace, sequence.prompt());
    let is_pinned = positions <= sequence.prompt_len && is_pinned();
    let (behind, now) = (StateBehind { namespace, tokens, lifetime, is_pinned }, prefixes.now());
    let read = || read_state(state, runner);
    prefixes.disk.spill_state(&behind, read, &prefixes.tenants.namespaces, now);
}

/// Frees the blocks of a sequence that has ended; the disk holds those that it is to take.
pub(super) fn release_ended(sequence: &Sequence, prefixes: &mut Prefixes) {
    sequence.release(&mut prefixes.ram.cache);
    share_ended(sequence, prefixes);
    let now = prefixes.now();
    if let Some(stored) = sequence.stored_blocks(true) {
        prefixes.disk.spill_ended(sequence.spilled, &stored, &mut prefixes.ram, now);
    }
}

/// Before the process ends: has the disk take what the next start wants, also of sequences that are still running.
pub(super) fn spill_for_next_start(running: &Running, prefixes: &mut Prefixes) {
    let now = prefixes.now();
    for sequence in running.iter() {
        if let Some(stored) = sequence.stored_blocks(false) {
            prefixes.disk.add_end(&stored, now);
        }
    }
    prefixes.disk.spill_likely(&mut prefixes.ram, now);
}
