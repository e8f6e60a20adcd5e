//! Memory pressure: sequences whose retention policy allows it compress what they have stored, so that no sequence is
//! preempted and none waits for room that they could release.
//!
//! A sequence needs room for its retained positions before it releases anything. So that much is left free while a
//! sequence that may compress is running, and compression starts before memory runs out.

use kvik_cache::{BLOCK_POSITIONS, SeqId, blocks_for};

use super::Scheduler;
use super::reuse::known;
use super::sequence::Sequence;

impl Scheduler {
    /// When memory is about to run short although the background has made way, compresses the sequence that releases
    /// most, one at a time.
    pub(super) fn tighten(&mut self) {
        let passes = |sequence: &Sequence| sequence.forgetting.as_ref().is_some_and(|it| it.pass.is_some());
        if self.running.iter().any(passes) {
            return;
        }
        while self.is_short() {
            if !self.make_way() {
                return self.tighten_one();
            }
        }
    }

    fn tighten_one(&mut self) {
        let room = self.ram.room();
        let fits = |sequence: &&Sequence| sequence.blocks_to_tighten().is_some_and(|blocks| blocks <= room);
        let gains =
            self.running.iter().filter(fits).filter_map(|sequence| Some((sequence.gain()?, sequence.id)));
        let Some((_, id)) = gains.max() else { return };
        let sequence = self.running.find_mut(id).expect("it runs");
        let stored = sequence.stored;
        if let Some(forgetting) = &mut sequence.forgetting {
            forgetting.tighten(stored);
        }
    }

    /// Handles a pass, caused by memory pressure, that finds no room for the retained positions: withdraws the point,
    /// so that the sequence continues as it is. Returns whether that is possible.
    pub(super) fn withdraw_point(&mut self, id: SeqId) -> bool {
        let Some(sequence) = self.running.find_mut(id) else { return false };
        let (stored, furthest) = (sequence.stored, sequence.furthest);
        let Some(forgetting) = &mut sequence.forgetting else { return false };
        // Once tokens after it are computed, the point is a part of the answer.
        stored == furthest && forgetting.withdraw(stored)
    }

    /// Whether there is less room than the next step of all sequences, the next waiting request and the reserve need,
    /// and their total demand exceeds the room.
    fn is_short(&self) -> bool {
        let Some(reserve) = self.running.reserve(None) else { return false };
        let room = self.ram.room();
        let awaited = self.queue.oldest_foreground().filter(|_| !self.is_full());
        let awaited = awaited.map_or(0, |sequence| {
            let known = known(sequence, &self.ram.cache, &self.running).tokens / BLOCK_POSITIONS;
            blocks_for(sequence.reach() + BLOCK_POSITIONS).saturating_sub(known)
        });
        let missing = |sequence: &Sequence| {
            let held = self.ram.cache.table(sequence.id).len();
            blocks_for(sequence.positions_max()).saturating_sub(held)
        };
        let wanted = awaited + self.running.iter().map(missing).sum::<usize>();
        wanted > room && awaited + self.running.len() + reserve > room
    }
}
