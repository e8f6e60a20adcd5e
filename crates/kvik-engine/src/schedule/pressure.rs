//! Memory pressure: sequences whose retention policy allows it compress what they have stored, so that no sequence is
//! preempted and none waits for room that they could release.
//!
//! A sequence needs room for its retained positions before it releases anything. So that much is left free while a
//! sequence that may compress is running, and compression starts before memory runs out.

use kvik_cache::{BLOCK_POSITIONS, blocks_for};

use super::growth::make_way;
use super::jobs::Jobs;
use super::prefixes::Prefixes;
use super::ram::Ram;
use super::reuse::known;
use super::running::Running;
use super::sequence::Sequence;
use super::tiers::release_retired;

/// When memory is about to run short although the background has made way and no prompt that was public holds blocks,
/// compresses the sequence that releases most, one at a time. What is being written to the disk is not given up for that:
/// it is released when memory has run out.
pub(super) fn tighten(jobs: &mut Jobs, prefixes: &mut Prefixes) {
    let passes = |sequence: &Sequence| sequence.forgetting.as_ref().is_some_and(|it| it.pass.is_some());
    if jobs.running.iter().any(passes) {
        return;
    }
    while is_short(jobs, &prefixes.ram) {
        if !make_way(jobs, prefixes) && !release_retired(jobs, prefixes) {
            return tighten_one(&mut jobs.running, prefixes.ram.room());
        }
    }
}

/// Adds a point to the sequence that releases most, among those whose retained positions fit into `room` blocks.
fn tighten_one(running: &mut Running, room: usize) {
    let fits = |sequence: &&Sequence| sequence.blocks_to_tighten().is_some_and(|blocks| blocks <= room);
    let gains = running.iter().filter(fits).filter_map(|sequence| Some((sequence.gain()?, sequence.id)));
    let Some((_, id)) = gains.max() else { return };
    let sequence = running.find_mut(id).expect("it runs");
    let stored = sequence.stored;
    if let Some(forgetting) = &mut sequence.forgetting {
        forgetting.tighten(stored);
    }
}

/// Whether there is less room than the next step of all sequences, the next waiting request and the reserve need, and
/// their total demand exceeds the room.
fn is_short(jobs: &Jobs, ram: &Ram) -> bool {
    let Jobs { queue, running, .. } = jobs;
    let Some(reserve) = running.reserve(None) else { return false };
    let room = ram.room();
    let awaited = queue.oldest_foreground().filter(|_| !jobs.is_full());
    let awaited = awaited.map_or(0, |sequence| {
        let known = known(sequence, &ram.cache, running).tokens / BLOCK_POSITIONS;
        blocks_for(sequence.reach() + BLOCK_POSITIONS).saturating_sub(known)
    });
    let missing = |sequence: &Sequence| {
        let held = ram.cache.table(sequence.id).len();
        blocks_for(sequence.positions_max()).saturating_sub(held)
    };
    let wanted = awaited + running.iter().map(missing).sum::<usize>();
    wanted > room && awaited + running.len() + reserve > room
}
