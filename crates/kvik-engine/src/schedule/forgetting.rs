//! Passes of the retention policy: sequences at a point decide which positions to retain, and move them.
//!
//! A pass is made in pieces. While other sequences run, a step spends at most [`SLICE`] on it, so that no stream waits
//! longer than a step for its next token. How a pass is divided does not affect its result.

use std::time::Duration;

use kvik_cache::retain::{Decision, LayerFacts, Watch, decide};
use kvik_cache::{BLOCK_POSITIONS, SeqId};
use kvik_model::batch::{Retainer, Runner};

use super::Scheduler;
use super::forget::{Pass, Stage, kept};
use super::kept_prefix::name_of_kept;
use super::sequence::{Sequence, Sharing};
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

impl Scheduler {
    /// Continues the passes of all sequences that are at a point, the oldest first.
    pub(super) fn forget(&mut self, runner: &mut dyn Runner) {
        let Some(retainer) = runner.retainer() else { return };
        let started = self.now();
        let passes = self.running.iter_mut().filter_map(|sequence| begin(sequence, &self.config));
        for id in passes.collect::<Vec<SeqId>>() {
            let Some(sequence) = self.running.find(id) else { continue };
            let alone = self.running.delays_nobody(sequence);
            let one_piece = sequence.is_background() && self.running.foreground() > 0;
            while alone || self.now().saturating_sub(started) < SLICE {
                if self.advance(id, retainer) != Progress::More || one_piece {
                    break;
                }
            }
        }
    }

    /// Does the next piece of a pass.
    fn advance(&mut self, id: SeqId, retainer: &mut dyn Retainer) -> Progress {
        let Some(sequence) = self.running.find_mut(id) else { return Progress::Over };
        let Some(pass) = sequence.forgetting.as_mut().and_then(|forgetting| forgetting.pass.take()) else {
            return Progress::Over;
        };
        let layers = retainer.layout().layers().len();
        let next = match pass.stage {
            Stage::Repeat { pieces, done } if !pieces.is_empty() => {
                self.set_stage(id, Stage::Repeat { pieces, done });
                return Progress::Waits;
            }
            Stage::Repeat { .. } => Stage::Facts(Vec::new()),
            Stage::Facts(facts) if facts.len() < layers => self.gather(id, facts, retainer),
            Stage::Facts(facts) => Stage::Room(self.decide(id, &facts)),
            Stage::Room(decision) if self.somebody_moves(id) => {
                // One at a time: a moving sequence holds blocks both for what it stores and for what it retains.
                self.set_stage(id, Stage::Room(decision));
                return Progress::Waits;
            }
            Stage::Room(decision) => return self.make_room_for(id, decision, retainer),
            Stage::Move { decision, storage, id: to, layers: moved } if moved < layers => {
                self.move_layer(id, (&decision, &storage), moved, retainer);
                Stage::Move { decision, storage, id: to, layers: moved + 1 }
            }
            Stage::Move { decision, storage, id: to, .. } => {
                let storage = self.share_kept(id, to, storage, retainer);
                self.switch(id, to, &decision, storage);
                return Progress::Over;
            }
        };
        self.set_stage(id, next);
        Progress::More
    }

    /// Whether another sequence is moving its retained positions, so that `id` must wait; a background sequence is
    /// preempted instead.
    fn somebody_moves(&mut self, id: SeqId) -> bool {
        let moves = |sequence: &&Sequence| {
            sequence.forgetting.as_ref().is_some_and(|forgetting| forgetting.moves_to().is_some())
        };
        let Some(mover) = self.running.iter().find(moves) else { return false };
        let (mover, yields) = (mover.id, mover.is_background());
        if !yields || self.running.find(id).is_none_or(Sequence::is_background) {
            return true;
        }
        if let Some(sequence) = self.running.take(mover) {
            self.preempt(sequence);
        }
        false
    }

    fn set_stage(&mut self, id: SeqId, stage: Stage) {
        if let Some(forgetting) = self.running.find_mut(id).and_then(|sequence| sequence.forgetting.as_mut())
        {
            forgetting.pass = Some(Pass { stage });
        }
    }

    /// Gathers the facts of the next layer.
    fn gather(&mut self, id: SeqId, mut facts: Vec<LayerFacts>, retainer: &mut dyn Retainer) -> Stage {
        let sequence = self.running.find(id).expect("its pass is under way");
        let forgetting = sequence.forgetting.as_ref().expect("it forgets");
        let held = sequence.held(self.ram.cache.table(id));
        facts.push(held.facts(retainer, facts.len(), &forgetting.retention, &forgetting.observation));
        Stage::Facts(facts)
    }

    /// Decides which positions a sequence retains.
    fn decide(&mut self, id: SeqId, facts: &[LayerFacts]) -> Decision {
        let sequence = self.running.find_mut(id).expect("its pass is under way");
        let stored = sequence.stored;
        let forgetting = sequence.forgetting.as_mut().expect("it forgets");
        let heads = self.config.calibration.as_ref();
        decide(&forgetting.retention, stored, facts, heads, &mut forgetting.state)
    }

    /// Allocates blocks for the retained positions of a sequence. If there are none, the point is withdrawn if only
    /// memory pressure caused it; otherwise the youngest sequence is preempted, which may be this one.
    fn make_room_for(&mut self, id: SeqId, decision: Decision, retainer: &mut dyn Retainer) -> Progress {
        if let Some(storage) = self.lease_storage(id, &decision, retainer) {
            self.set_stage(id, storage(decision));
            return Progress::More;
        }
        self.set_stage(id, Stage::Room(decision));
        if self.make_way() {
            return if self.running.find(id).is_some() { Progress::More } else { Progress::Over };
        }
        if self.release_disk_blocks() {
            return Progress::More;
        }
        if self.withdraw_point(id) {
            return Progress::Over;
        }
        match self.running.len() {
            1 => {
                let sequence = self.running.find(id).expect("it runs alone");
                let (job, tokens) = (sequence.job, sequence.stored);
                self.fail(job, self.ram.over_budget(tokens));
            }
            _ => self.preempt_youngest(),
        }
        if self.running.find(id).is_some() { Progress::More } else { Progress::Over }
    }

    /// Allocates a new cache sequence with blocks for what `decision` retains; returns the stage that moves it there.
    fn lease_storage(
        &mut self,
        id: SeqId,
        decision: &Decision,
        retainer: &mut dyn Retainer,
    ) -> Option<impl FnOnce(Decision) -> Stage + use<>> {
        let layout = retainer.layout().clone();
        let sequence = self.running.find(id).expect("its pass is under way");
        let (at, shared) = (sequence.stored, sequence.shared_blocks());
        let (Sharing::Namespace(own) | Sharing::Private(own)) = sequence.sharing;
        let kept = name_of_kept(sequence, &mut self.tenants, &mut self.ram, &mut self.disk);
        let (namespace, first) =
            kept.map_or((own, 0), |kept| (kept.namespace, kept::header_blocks(&layout, at)));
        let to = self.ram.new_seq();
        let held = self.ram.cache.lease(to, namespace, &sequence.tokens[..shared * BLOCK_POSITIONS]);
        let shared = held / BLOCK_POSITIONS;
        let needed = Ragged::blocks_needed(&layout, &Ragged::counts(decision, shared));
        if self.ram.cache.reserve(to, (first + shared + needed) * BLOCK_POSITIONS).is_err() {
            self.ram.cache.abandon(to);
            return None;
        }
        let kept = sequence.held(self.ram.cache.table(id)).kept(decision);
        let blocks = &self.ram.cache.table(to)[first + shared..];
        let storage = Ragged::new(&layout, shared, at, kept, blocks);
        self.copy_sinks(id, retainer);
        Some(move |decision| Stage::Move { decision, storage, id: to, layers: 0 })
    }

    /// Copies the first keys of a sequence whose policy renews their RoPE rotation, once: while the sequence is exact.
    fn copy_sinks(&mut self, id: SeqId, retainer: &dyn Retainer) {
        let sequence = self.running.find_mut(id).expect("its pass is under way");
        let held = sequence.held(self.ram.cache.table(id));
        let sinks = sequence
            .forgetting
            .as_ref()
            .and_then(|forgetting| held.sinks(retainer, forgetting.retention.rotated_sinks()));
        if let Some(forgetting) = sequence.forgetting.as_mut().filter(|_| sinks.is_some()) {
            forgetting.sinks = sinks;
        }
    }

    /// Moves the retained positions of one layer.
    fn move_layer(
        &mut self,
        id: SeqId,
        moved: (&Decision, &Ragged),
        layer: usize,
        retainer: &mut dyn Retainer,
    ) {
        let sequence = self.running.find(id).expect("its pass is under way");
        let sinks = sequence.forgetting.as_ref().and_then(|forgetting| forgetting.sinks.as_ref());
        sequence.held(self.ram.cache.table(id)).move_layer(retainer, layer, moved, sinks);
    }

    /// Continues a sequence with its retained positions. Its exact blocks stay in the cache for other requests.
    fn switch(&mut self, id: SeqId, to: SeqId, decision: &Decision, storage: Ragged) {
        let mut sequence = self.running.take(id).expect("its pass is under way");
        self.release_ended(&sequence);
        sequence.id = to;
        let stored = sequence.stored;
        if let Some(forgetting) = &mut sequence.forgetting {
            forgetting.pass_point(stored, decision, storage);
            self.results.counters.tightened += u64::from(forgetting.tightened().last() == Some(&stored));
        }
        self.results.note_retained(&sequence);
        self.running.insert(sequence);
    }
}

/// Starts the pass of a sequence that is at a point; returns its id if a pass is in progress.
fn begin(sequence: &mut Sequence, config: &crate::config::EngineConfig) -> Option<SeqId> {
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
