//! Blocks for running sequences: growth, forks, and preemption when there are none left.

use kvik_cache::{BLOCK_POSITIONS, BlockId, Cache, NoSpace, SeqId};
use kvik_model::batch::{Retainer, Runner};

use super::jobs::Jobs;
use super::prefixes::Prefixes;
use super::ram::{PrivateCopy, Ram};
use super::running::Fork;
use super::sequence::{Sequence, Sharing};
use super::tiers::{end_background_loads, release_unneeded};
use crate::api::FinishReason;
use crate::retain::{Held, Ragged};

/// Bytes that a step copies for the choices of private requests while other requests run. The copy of one choice is not
/// divided: a prompt of 4,096 tokens of a 7B model takes some 60 ms, in which no stream goes on.
const COPIED_BYTES_MAX: usize = 64 << 20;

/// Adds `blocks` to `storage`, which lacked them for its first `tokens` tokens.
pub(super) fn extend(storage: &mut Ragged, blocks: &[BlockId], tokens: usize, retainer: &mut dyn Retainer) {
    blocks.iter().for_each(|&block| storage.add_block(retainer.layout(), block));
    if storage.is_frozen() {
        thaw(storage, retainer);
    }
    storage.reserve(retainer.layout(), tokens);
}

/// Copies the shared parts of the last tiles of all heads, so that the sequence may append to them.
fn thaw(storage: &mut Ragged, retainer: &mut dyn Retainer) {
    let copies = storage.copies(retainer.layout());
    Held { blocks: &[], storage: Some(storage), tokens: 0 }.with_kv(|from| {
        for (layer, copies) in copies.iter().enumerate() {
            let positions: Vec<&[u32]> = copies.positions.iter().map(Vec::as_slice).collect();
            let to: Vec<&[u32]> = copies.to.iter().map(Vec::as_slice).collect();
            retainer.move_positions(layer, from, &positions, &to);
        }
    });
    storage.thaw(copies);
}

/// The result of growing the running sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Growth {
    /// All have the blocks that they need.
    Complete,
    /// Some foreground sequences were preempted.
    Preempted,
}

/// Starts the choices that are forks of running sequences. A choice without room or without a parent is queued and takes
/// the prompt from the cache. While other requests run, choices that copy their prompt start a few at a time.
pub(super) fn start_forks(jobs: &mut Jobs, prefixes: &mut Prefixes, runner: &mut dyn Runner) {
    let copied_max = COPIED_BYTES_MAX / prefixes.block_bytes.max(1);
    let mut copied = 0;
    for Fork { parent, child } in jobs.running.take_forks() {
        let blocks = copied_blocks(&child, &prefixes.ram);
        let is_long = copied > 0 && blocks > 0 && copied + blocks > copied_max;
        if is_long && jobs.running.serves_others(child.job) {
            jobs.running.fork(parent, child);
            continue;
        }
        match start_fork(parent, child, jobs, prefixes, runner) {
            Some(child) => jobs.queue.insert(child),
            None => copied += blocks,
        }
    }
}

/// Blocks that are copied when a choice starts, and its state in blocks: a private one does not share those of its prompt.
fn copied_blocks(child: &Sequence, ram: &Ram) -> usize {
    match child.sharing {
        Sharing::Private(_) if child.forgetting.is_none() => ram.needed(child.prompt_len),
        Sharing::Private(_) | Sharing::Namespace(_) => 0,
    }
}

/// Returns the sequence if it could not start.
fn start_fork(
    parent: SeqId,
    mut child: Sequence,
    jobs: &mut Jobs,
    prefixes: &mut Prefixes,
    runner: &mut dyn Runner,
) -> Option<Sequence> {
    // A choice with a retention policy computes the prompt itself: its parent's observations belong to the parent.
    if child.forgetting.is_some() {
        return Some(child);
    }
    let (id, positions) = loop {
        let has_place = jobs.has_place(&child);
        let parent = jobs.running.find(parent);
        let copied = parent
            .filter(|_| has_place)
            .and_then(|parent| copy_parent(parent, &child, jobs.running.len(), &mut prefixes.ram, runner));
        match copied {
            Some(copied) => break copied,
            None if child.is_background() || parent.is_none() => return Some(child),
            None if make_way(jobs, prefixes) => {}
            None => return Some(child),
        }
    };
    child.id = id;
    child.stored = positions;
    child.furthest = positions;
    jobs.running.insert(child);
    None
}

/// Copies the stored positions of `parent` to a new sequence if there is room; returns its id and its positions.
fn copy_parent(
    parent: &Sequence,
    child: &Sequence,
    running: usize,
    ram: &mut Ram,
    runner: &mut dyn Runner,
) -> Option<(SeqId, usize)> {
    let (id, positions, parent) = (ram.new_seq(), parent.stored, parent.id);
    let started = match child.sharing {
        Sharing::Namespace(_) => ram.fork(parent, id, &child.tokens[..positions], runner),
        Sharing::Private(namespace) => {
            ram.copy(PrivateCopy { parent, id, namespace, positions }, running, runner)
        }
    };
    started.then_some((id, positions))
}

/// Gives every running sequence blocks for all the tokens it is to store, the oldest first. If there are none, the
/// youngest is preempted; so the oldest always makes progress, and every sequence ends. While foreground requests exist,
/// the background is preempted before anything else.
pub(super) fn grow(jobs: &mut Jobs, prefixes: &mut Prefixes, runner: &mut dyn Runner) -> Growth {
    let mut growth = Growth::Complete;
    let mut index = 0;
    while index < jobs.running.len() {
        let tokens = jobs.running[index].reach();
        match reserve(&mut jobs.running[index], &mut prefixes.ram.cache, runner) {
            Ok(()) => index += 1,
            Err(_) if make_way(jobs, prefixes) => {}
            Err(_) if release_unneeded(jobs, prefixes) => {}
            Err(_) if jobs.running.len() == 1 => end_alone(tokens, jobs, prefixes),
            Err(_) => {
                jobs.preempt_youngest(&mut prefixes.ram.cache);
                growth = Growth::Preempted;
            }
        }
    }
    growth
}

/// Ends the only running sequence, because pins leave no room for its first `tokens` tokens. If its answer has not begun,
/// its request fails.
pub(super) fn end_alone(tokens: usize, jobs: &mut Jobs, prefixes: &mut Prefixes) {
    let sequence = &mut jobs.running[0];
    if sequence.has_begun() {
        jobs.results.end_answer(sequence, FinishReason::Length, prefixes.now());
    } else {
        let (job, error) = (sequence.job, prefixes.over_budget(sequence.tenant, tokens));
        jobs.fail(job, error, &mut prefixes.ram.cache);
    }
}

/// Allocates blocks for everything that a running sequence is to store, or none.
fn reserve(sequence: &mut Sequence, cache: &mut Cache, runner: &mut dyn Runner) -> Result<(), NoSpace> {
    if sequence.ended.is_some() {
        return Ok(());
    }
    let (id, tokens) = (sequence.id, sequence.reach());
    let forgetting = sequence.forgetting.as_mut();
    let Some(storage) = forgetting.and_then(|forgetting| forgetting.storage.as_mut()) else {
        return cache.reserve(id, tokens + sequence.repeat_rows());
    };
    if storage.is_frozen() && tokens == sequence.stored {
        return Ok(());
    }
    let retainer = runner.retainer().expect("it has forgotten something");
    let before = cache.table(id).len();
    let missing = storage.blocks_missing(retainer.layout(), tokens);
    cache.reserve(id, (before + missing) * BLOCK_POSITIONS)?;
    extend(storage, &cache.table(id)[before..], tokens, retainer);
    Ok(())
}

/// Takes room from the background if a foreground request exists: preempts its youngest sequence, or ends the loads for
/// it. Returns whether there was any.
pub(super) fn make_way(jobs: &mut Jobs, prefixes: &mut Prefixes) -> bool {
    if !jobs.has_foreground() {
        return false;
    }
    match jobs.running.pop_background() {
        Some(sequence) => {
            jobs.preempt(sequence, &mut prefixes.ram.cache);
            true
        }
        None => end_background_loads(jobs, prefixes),
    }
}
