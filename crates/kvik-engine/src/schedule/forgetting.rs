//! Passes of the retention policy: sequences at a point decide which positions to retain, and move them.
//!
//! A pass is made in pieces. While other sequences run, a step spends at most [`SLICE`] on it, so that no stream waits
//! longer than a step for its next token. How a pass is divided does not affect its result.

use std::time::Duration;

use kvik_cache::retain::{Decision, LayerFacts, Watch, decide};
use kvik_cache::{BLOCK_POSITIONS, Cache, SeqId};
use kvik_model::batch::{Retainer, Runner};

use super::forget::{Pass, Stage, kept};
use super::growth::{end_alone, make_way};
use super::jobs::Jobs;
use super::kept_prefix::share_kept;
use super::prefixes::Prefixes;
use super::sequence::{Sequence, Sharing};
use super::tiers::{release_ended, release_unneeded};
use crate::config::EngineConfig;
use crate::retain::Ragged;

/// Time per step for passes while other sequences run.
const SLICE: Duration = Duration::from_millis(10);

/// How a pass continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// At once.
    More,
    /// After rows of it were computed, or when another sequence has released blocks.
    Waits,
    /// The pass is done, or its sequence no longer runs.
    Over,
}

/// Continues the passes of all sequences that are at a point, the oldest first.
pub(super) fn forget(
    jobs: &mut Jobs,
    prefixes: &mut Prefixes,
    config: &EngineConfig,
    runner: &mut dyn Runner,
) {
    let Some(retainer) = runner.retainer() else { return };
    let started = prefixes.now();
    let passes = jobs.running.iter_mut().filter_map(|sequence| begin(sequence, config));
    for id in passes.collect::<Vec<SeqId>>() {
        let Some(sequence) = jobs.running.find(id) else { continue };
        let alone = jobs.running.delays_nobody(sequence);
        let one_piece = sequence.is_background() && jobs.running.foreground() > 0;
        while alone || prefixes.now().saturating_sub(started) < SLICE {
            if advance(id, jobs, prefixes, config, retainer) != Progress::More || one_piece {
                break;
            }
        }
    }
}

/// Does the next piece of a pass.
fn advance(
    id: SeqId,
    jobs: &mut Jobs,
    prefixes: &mut Prefixes,
    config: &EngineConfig,
    retainer: &mut dyn Retainer,
) -> Progress {
    let Some(sequence) = jobs.running.find_mut(id) else { return Progress::Over };
    let Some(pass) = sequence.forgetting.as_mut().and_then(|forgetting| forgetting.pass.take()) else {
        return Progress::Over;
    };
    let (layers, cache) = (retainer.layout().layers().len(), &prefixes.ram.cache);
    let next = match pass.stage {
        Stage::Repeat { pieces, done } if !pieces.is_empty() => {
            set_stage(sequence, Stage::Repeat { pieces, done });
            return Progress::Waits;
        }
        Stage::Repeat { .. } => Stage::Facts(Vec::new()),
        Stage::Facts(facts) if facts.len() < layers => gather(sequence, facts, (cache, config), retainer),
        Stage::Facts(facts) => Stage::Room(decide_for(sequence, &facts, config)),
        Stage::Room(decision) => return make_room_for(id, decision, jobs, prefixes, retainer),
        Stage::Move { decision, storage, id: to, layers: moved } if moved < layers => {
            move_layer(sequence, (&decision, &storage), moved, cache, retainer);
            Stage::Move { decision, storage, id: to, layers: moved + 1 }
        }
        Stage::Move { decision, storage, id: to, .. } => {
            let storage = share_kept(sequence, to, storage, prefixes, &mut jobs.results, retainer);
            switch(id, to, &decision, storage, jobs, prefixes);
            return Progress::Over;
        }
    };
    set_stage(sequence, next);
    Progress::More
}

fn set_stage(sequence: &mut Sequence, stage: Stage) {
    if let Some(forgetting) = &mut sequence.forgetting {
        forgetting.pass = Some(Pass { stage });
    }
}

/// Whether another sequence is moving its retained positions, so that `id` must wait; a background sequence is preempted
/// instead.
fn somebody_moves(id: SeqId, jobs: &mut Jobs, cache: &mut Cache) -> bool {
    let moves = |sequence: &&Sequence| {
        sequence.forgetting.as_ref().is_some_and(|forgetting| forgetting.moves_to().is_some())
    };
    let Some(mover) = jobs.running.iter().find(moves) else { return false };
    let (mover, yields) = (mover.id, mover.is_background());
    if !yields || jobs.running.find(id).is_none_or(Sequence::is_background) {
        return true;
    }
    if let Some(sequence) = jobs.running.take(mover) {
        jobs.preempt(sequence, cache);
    }
    false
}
/// Gathers the facts of the next layer.
fn gather(
    sequence: &Sequence,
    mut facts: Vec<LayerFacts>,
    (cache, config): (&Cache, &EngineConfig),
    retainer: &mut dyn Retainer,
) -> Stage {
    let forgetting = sequence.forgetting.as_ref().expect("it forgets");
    let held = sequence.held(cache.table(sequence.id));
    let gates = config.gates.as_deref();
    facts.push(held.facts(retainer, facts.len(), &forgetting.retention, &forgetting.observation, gates));
    Stage::Facts(facts)
}

/// Decides which positions a sequence retains.
fn decide_for(sequence: &mut Sequence, facts: &[LayerFacts], config: &EngineConfig) -> Decision {
    let stored = sequence.stored;
    let forgetting = sequence.forgetting.as_mut().expect("it forgets");
    let heads = config.calibration.as_ref();
    decide(&forgetting.retention, stored, facts, heads, &mut forgetting.state)
}

/// Allocates blocks for the retained positions of a sequence. If there are none, the point is withdrawn if only memory
/// pressure caused it; otherwise the youngest sequence is preempted, which may be this one.
fn make_room_for(
    id: SeqId,
    decision: Decision,
    jobs: &mut Jobs,
    prefixes: &mut Prefixes,
    retainer: &mut dyn Retainer,
) -> Progress {
    // One at a time: a moving sequence holds blocks both for what it stores and for what it retains.
    let waits = somebody_moves(id, jobs, &mut prefixes.ram.cache);
    let sequence = jobs.running.find_mut(id).expect("its pass is under way");
    if waits {
        set_stage(sequence, Stage::Room(decision));
        return Progress::Waits;
    }
    if let Some((storage, id)) = lease_storage(sequence, &decision, prefixes, retainer) {
        set_stage(sequence, Stage::Move { decision, storage, id, layers: 0 });
        return Progress::More;
    }
    set_stage(sequence, Stage::Room(decision));
    if !make_way(jobs, prefixes) && !release_unneeded(jobs, prefixes) {
        let sequence = jobs.running.find_mut(id).expect("no sequence made way");
        if withdraw_point(sequence) {
            return Progress::Over;
        }
        let tokens = sequence.stored;
        match jobs.running.len() {
            1 => end_alone(tokens, jobs, prefixes),
            _ => jobs.preempt_youngest(&mut prefixes.ram.cache),
        }
    }
    let goes_on = jobs.running.find(id).is_some_and(|sequence| sequence.ended.is_none());
    if goes_on { Progress::More } else { Progress::Over }
}

/// Withdraws the point at which a sequence is, if memory pressure caused it, so that the sequence continues as it is.
/// Returns whether that is possible: once tokens after it are computed, the point is a part of the answer.
fn withdraw_point(sequence: &mut Sequence) -> bool {
    let (stored, furthest) = (sequence.stored, sequence.furthest);
    let Some(forgetting) = &mut sequence.forgetting else { return false };
    stored == furthest && forgetting.withdraw(stored)
}

/// Allocates a new cache sequence with blocks for what `decision` retains; returns the storage in them, and its id.
fn lease_storage(
    sequence: &mut Sequence,
    decision: &Decision,
    prefixes: &mut Prefixes,
    retainer: &mut dyn Retainer,
) -> Option<(Ragged, SeqId)> {
    let layout = retainer.layout().clone();
    // Where less is retained than is protected, not all of these blocks stay whole.
    let (at, shared) = (sequence.stored, sequence.shared_blocks().min(Ragged::whole_blocks(decision)));
    let (Sharing::Namespace(own) | Sharing::Private(own)) = sequence.sharing;
    let kept = prefixes.name_of_kept(sequence);
    let (namespace, first) = kept.map_or((own, 0), |kept| (kept.namespace, kept::header_blocks(&layout, at)));
    let (to, cache) = (prefixes.ram.new_seq(), &mut prefixes.ram.cache);
    let held = cache.lease(to, namespace, &sequence.tokens[..shared * BLOCK_POSITIONS]);
    let shared = held / BLOCK_POSITIONS;
    let needed = Ragged::blocks_needed(&layout, &Ragged::counts(decision, shared));
    if cache.reserve(to, (first + shared + needed) * BLOCK_POSITIONS).is_err() {
        cache.abandon(to);
        return None;
    }
    // It goes on to use what both share.
    cache.set_lifetime(to, sequence.lifetime);
    let kept = sequence.held(cache.table(sequence.id)).kept(decision);
    let storage = Ragged::new(&layout, shared, at, kept, &cache.table(to)[first + shared..]);
    copy_sinks(sequence, cache, retainer);
    Some((storage, to))
}

/// Copies the first keys of a sequence whose policy renews their RoPE rotation, once: while the sequence is exact.
fn copy_sinks(sequence: &mut Sequence, cache: &Cache, retainer: &dyn Retainer) {
    let held = sequence.held(cache.table(sequence.id));
    let sinks = sequence
        .forgetting
        .as_ref()
        .and_then(|forgetting| held.sinks(retainer, forgetting.retention.rotated_sinks()));
    if let Some(forgetting) = sequence.forgetting.as_mut().filter(|_| sinks.is_some()) {
        forgetting.sinks = sinks;
    }
}

/// Moves the retained positions of one layer, and fits their values if the policy does.
fn move_layer(
    sequence: &Sequence,
    moved: (&Decision, &Ragged),
    layer: usize,
    cache: &Cache,
    retainer: &mut dyn Retainer,
) {
    let forgetting = sequence.forgetting.as_ref().expect("it forgets");
    let held = sequence.held(cache.table(sequence.id));
    held.move_layer(retainer, layer, moved, forgetting.sinks.as_ref());
    if forgetting.retention.fits_values() {
        held.fit_layer(retainer, layer, moved, (&forgetting.retention, &forgetting.observation));
    }
}

/// Continues a sequence with its retained positions. Its exact blocks stay in the cache for other requests.
fn switch(
    id: SeqId,
    to: SeqId,
    decision: &Decision,
    storage: Ragged,
    jobs: &mut Jobs,
    prefixes: &mut Prefixes,
) {
    let mut sequence = jobs.running.take(id).expect("its pass is under way");
    release_ended(&sequence, prefixes);
    sequence.id = to;
    let stored = sequence.stored;
    if let Some(forgetting) = &mut sequence.forgetting {
        forgetting.pass_point(stored, decision, storage);
        let tightened = forgetting.tightened().last() == Some(&stored);
        jobs.results.counters.tightened += u64::from(tightened);
    }
    jobs.results.note_retained(&sequence);
    jobs.running.insert(sequence);
}
/// Starts the pass of a sequence that is at a point; returns its id if a pass is in progress.
fn begin(sequence: &mut Sequence, config: &EngineConfig) -> Option<SeqId> {
    if sequence.is_to_forget() {
        let prompt = &sequence.tokens[..sequence.stored];
        let forgetting = sequence.forgetting.as_mut().expect("it is at a point");
        if forgetting.pass.is_none() {
            let stage = match forgetting.retention.watch() {
                Watch::Repeat => {
                    let mut pieces = config.repeat.pieces(prompt);
                    pieces.reverse();
                    Stage::Repeat { pieces, done: 0 }
                }
                _ => Stage::Facts(Vec::new()),
            };
            forgetting.pass = Some(Pass { stage });
        }
        return Some(sequence.id);
    }
    None
}
