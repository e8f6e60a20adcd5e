//! The model test's simulated memory of windowed parts and states.

use super::{Random, World, marks};
use crate::admission::CopyState;
use crate::auxiliary::{AuxiliaryState, Reach, Windows};
use crate::ids::{BLOCK_POSITIONS, SeqId};

impl World {
    /// Computes the windowed parts and states of a sequence, from their present content.
    pub(super) fn compute_auxiliary(&mut self, seq: SeqId, end: usize) {
        let run = &self.running[&seq];
        let content =
            if self.namespaces.contains(&run.namespace) { run.namespace } else { self.namespaces[0] };
        let marks: Vec<u64> = marks(content, &run.tokens[..end]).collect();
        let table = self.cache.table(seq);
        let seen = self.needs.first_part(run.computed).saturating_mul(BLOCK_POSITIONS);
        for position in seen.min(run.computed)..run.computed {
            let held = self.parts[table[position / BLOCK_POSITIONS].index()][position % BLOCK_POSITIONS];
            assert_eq!(held, marks[position], "position {position} that {} sees", run.computed);
        }
        for (position, &mark) in marks.iter().enumerate().skip(run.computed) {
            self.parts[table[position / BLOCK_POSITIONS].index()][position % BLOCK_POSITIONS] = mark;
        }
        if let Some(live) = self.cache.state(seq) {
            let before = run.computed.checked_sub(1).map_or(0, |last| marks[last]);
            assert_eq!(
                self.states.get(&live).copied().unwrap_or(0),
                before,
                "the state before {}",
                run.computed
            );
            self.states.insert(live, end.checked_sub(1).map_or(0, |last| marks[last]));
            for (positions, state) in self.cache.saves(seq) {
                self.states.insert(state, marks[positions - 1]);
                self.seen.note("states saved", 1);
            }
        }
    }

    /// Carries out the changes to windowed parts and states.
    pub(super) fn apply_changes(&mut self) {
        let changes = self.cache.take_changes();
        changes.fresh.iter().for_each(|state| {
            self.states.insert(*state, 0);
        });
        self.seen.note("parts copied", changes.copies.len() as u64);
        self.seen.note("parts emptied", changes.parts.len() as u64);
        for copy in changes.copies {
            self.parts[copy.to.index()] = self.parts[copy.from.index()];
        }
        changes.parts.iter().for_each(|block| self.parts[block.index()] = [u64::MAX; BLOCK_POSITIONS]);
        for block in changes.blocks {
            self.memory[block.index()] = [u64::MAX; BLOCK_POSITIONS];
            self.parts[block.index()] = [u64::MAX; BLOCK_POSITIONS];
        }
        changes.states.iter().for_each(|state| {
            self.states.insert(*state, u64::MAX);
        });
    }

    pub(super) fn copy_state(&mut self, copy: Option<CopyState>) {
        let Some(CopyState { from, to }) = copy else { return };
        let seen = from.map_or(0, |from| self.states[&from]);
        self.states.insert(to, seen);
        self.seen.note("states copied", u64::from(from.is_some()));
    }
}

/// In half of the seeds layers hold blocks only; in the others windows, chunks, a state, or both.
pub(super) fn some_needs(random: &mut Random) -> AuxiliaryState {
    let kind = random.below(8);
    let positions = 1 + random.below(60) as u32;
    let reach = if random.below(3) == 0 { Reach::Chunk(positions) } else { Reach::Last(positions) };
    let part_bytes = 20 + random.below(300);
    let windows = Windows { reach, part_bytes, step_positions: 3 * BLOCK_POSITIONS };
    let state_bytes = 20 + random.below(400);
    match kind {
        0..4 => AuxiliaryState::default(),
        4 | 5 => AuxiliaryState { block_bytes: 100, windows: Some(windows), state_bytes: 0 },
        6 => AuxiliaryState { block_bytes: 100, windows: None, state_bytes },
        _ => AuxiliaryState { block_bytes: 100, windows: Some(windows), state_bytes },
    }
}
