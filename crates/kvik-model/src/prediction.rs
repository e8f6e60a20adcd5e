//! The prediction head of a model: guesses the token after the next one, for drafts.
//!
//! ```text
//!   hidden state of position p ─ norm ─┐
//!                                      ├ join ─ decoder layer ─ norm ─ output matrix    token p + 2
//!   embedding of token p + 1  ── norm ─┘          │ its own keys and values
//!                                                 └ after the norm: its own hidden state, for token p + 3
//! ```
//!
//! (Multi-token prediction, DeepSeek-V3, arXiv 2412.19437, section 2.2; the states after the norms, as in llama.cpp.) Of
//! several heads only the first is used.
//!
//! Here is what it holds of the sequences that it follows: keys and values of their last positions, and hidden states
//! whose successors are not known yet. It is never shared and never stored: keys and values of a position depend on the
//! token after it, so two sequences with a common prefix differ at its last position.

use std::io;

use kvik_cache::SeqId;
use kvik_kernels::{BLOCK_POSITIONS, KvArena, KvLayout};

use crate::batch::HEAD_PROMPT_ROWS;

/// Sequences that it follows at a time, which bounds its memory.
pub(crate) const SEQUENCES_MAX: usize = 16;
/// Blocks of a sequence: the head attends to its last positions only.
const BLOCKS: usize = 32;
/// Hidden states of a sequence that wait for the head.
const WAITING_MAX: usize = HEAD_PROMPT_ROWS;

/// The sequences that a head follows.
pub(crate) struct Slots {
    arena: KvArena,
    slots: Vec<Slot>,
    d_model: usize,
}

/// One of them.
struct Slot {
    owner: Option<SeqId>,
    /// Its blocks, in the order of its positions.
    blocks: Vec<u32>,
    /// The positions whose keys and values are stored, ascending.
    stored: Vec<u32>,
    /// The positions of the states that wait, ascending, after those stored.
    waiting: Vec<u32>,
    /// `[waiting, d_model]`
    states: Vec<f32>,
}

/// Hidden states that enter the keys and values of a sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entering<'a> {
    /// Number of positions stored before them.
    pub(crate) stored: usize,
    /// Their positions, at least one.
    pub(crate) positions: &'a [u32],
    /// `[positions, d_model]`
    pub(crate) states: &'a [f32],
}

impl Slots {
    /// Maps blocks of `layout`, whose only layer is the head's; memory is touched as they are used.
    pub(crate) fn new(layout: KvLayout, d_model: usize) -> io::Result<Slots> {
        let arena = KvArena::new(layout, SEQUENCES_MAX * BLOCKS)?;
        let blocks = |index: usize| (index * BLOCKS) as u32..((index + 1) * BLOCKS) as u32;
        let slots = (0..SEQUENCES_MAX).map(|index| Slot::new(blocks(index).collect()));
        Ok(Slots { arena, slots: slots.collect(), d_model })
    }

    /// Notes the hidden state of a position, `[d_model]`; what was held of later ones is dropped. A sequence for which
    /// there is no room is not followed.
    pub(crate) fn note(&mut self, id: SeqId, position: u32, state: &[f32]) {
        let owned = self.slots.iter().position(|slot| slot.owner == Some(id));
        let Some(index) = owned.or_else(|| self.slots.iter().position(|slot| slot.owner.is_none())) else {
            return;
        };
        let slot = &mut self.slots[index];
        slot.owner = Some(id);
        slot.cut(position, self.d_model);
        slot.waiting.push(position);
        slot.states.extend_from_slice(state);
        // Moved only once in a while.
        if slot.waiting.len() >= 2 * WAITING_MAX {
            slot.drop_waiting(slot.waiting.len() - WAITING_MAX, self.d_model);
        }
    }

    /// The slot of a sequence of `len` tokens, all but the last of which are computed, if the state of the last one
    /// computed waits. Makes room for the states that wait and for `more` positions after them.
    pub(crate) fn prepare(&mut self, id: SeqId, len: usize, more: usize) -> Option<usize> {
        let index = self.slots.iter().position(|slot| slot.owner == Some(id))?;
        let slot = &mut self.slots[index];
        let end = u32::try_from(len).ok()?.checked_sub(1)?;
        slot.cut(end, self.d_model);
        let surplus = slot.waiting.len().saturating_sub(WAITING_MAX);
        slot.drop_waiting(surplus, self.d_model);
        let is_last = slot.waiting.last().is_some_and(|&last| last + 1 == end);
        let needed = slot.waiting.len() + more;
        (is_last && slot.make_room(needed)).then_some(index)
    }

    /// The states of a prepared slot that wait.
    pub(crate) fn entering(&self, index: usize) -> Entering<'_> {
        let Slot { stored, waiting, states, .. } = &self.slots[index];
        Entering { stored: stored.len(), positions: waiting, states }
    }

    /// Notes that the states of a slot that waited are stored.
    pub(crate) fn entered(&mut self, index: usize) {
        let Slot { stored, waiting, states, .. } = &mut self.slots[index];
        stored.append(waiting);
        states.clear();
    }

    /// The arena, and the blocks of the slots at `indices`.
    pub(crate) fn parts(&mut self, indices: &[usize]) -> (&mut KvArena, Vec<&[u32]>) {
        let Slots { arena, slots, .. } = self;
        (arena, indices.iter().map(|&index| &slots[index].blocks[..]).collect())
    }

    /// Drops what is held of sequences for which `running` is false.
    pub(crate) fn follow_only(&mut self, running: &dyn Fn(SeqId) -> bool) {
        let Slots { arena, slots, .. } = self;
        for slot in slots.iter_mut().filter(|slot| slot.owner.is_some_and(|owner| !running(owner))) {
            slot.blocks.iter().for_each(|&block| arena.release(block, true));
            let blocks = std::mem::take(&mut slot.blocks);
            *slot = Slot::new(blocks);
        }
    }
}

impl Slot {
    fn new(blocks: Vec<u32>) -> Slot {
        Slot { owner: None, blocks, stored: Vec::new(), waiting: Vec::new(), states: Vec::new() }
    }

    /// Drops what is held of positions from `end` on.
    fn cut(&mut self, end: u32, d_model: usize) {
        self.waiting.truncate(self.waiting.partition_point(|&position| position < end));
        self.states.truncate(self.waiting.len() * d_model);
        self.stored.truncate(self.stored.partition_point(|&position| position < end));
    }

    /// Drops the first `count` states that wait.
    fn drop_waiting(&mut self, count: usize, d_model: usize) {
        self.waiting.drain(..count);
        self.states.drain(..count * d_model);
    }

    /// Drops the first blocks until `more` positions fit; returns whether they do.
    fn make_room(&mut self, more: usize) -> bool {
        while self.stored.len() + more > BLOCKS * BLOCK_POSITIONS && !self.stored.is_empty() {
            // Only whole blocks may move; a shorter rest is dropped with its block.
            self.stored.drain(..BLOCK_POSITIONS.min(self.stored.len()));
            self.blocks.rotate_left(1);
        }
        self.stored.len() + more <= BLOCKS * BLOCK_POSITIONS
    }
}

#[cfg(test)]
mod tests {
    use kvik_kernels::{KvFormat, KvLayer};

    use super::*;

    const D: usize = 2;

    fn slots() -> Slots {
        let layer = KvLayer::full(1, 8, KvFormat::F16, KvFormat::F16);
        Slots::new(KvLayout::new(vec![layer]), D).unwrap()
    }

    fn note(slots: &mut Slots, id: u64, positions: std::ops::Range<u32>) {
        positions.for_each(|position| slots.note(SeqId(id), position, &[position as f32; D]));
    }

    /// Positions that wait and the number of those stored, of a sequence of `len` tokens.
    fn held(slots: &mut Slots, id: u64, len: usize) -> Option<(Vec<u32>, usize)> {
        let index = slots.prepare(SeqId(id), len, 8)?;
        let Entering { stored, positions, states } = slots.entering(index);
        let as_noted = positions.iter().flat_map(|&position| [position as f32; D]);
        assert!(states.iter().copied().eq(as_noted));
        Some((positions.to_vec(), stored))
    }

    #[test]
    fn a_draft_that_was_refused_leaves_nothing() {
        let mut slots = slots();
        note(&mut slots, 1, 5..10);
        assert_eq!(held(&mut slots, 1, 11), Some((vec![5, 6, 7, 8, 9], 0)));
        let index = slots.prepare(SeqId(1), 11, 8).unwrap();
        slots.entered(index);
        // Three tokens were tried after token 10, and one of them was right.
        note(&mut slots, 1, 10..14);
        assert_eq!(held(&mut slots, 1, 13), Some((vec![10, 11], 5)));
        // Tried again from there.
        note(&mut slots, 1, 11..12);
        assert_eq!(held(&mut slots, 1, 13), Some((vec![10, 11], 5)));
        assert_eq!(held(&mut slots, 1, 30), None, "the state of the last position is not there");
        assert_eq!(held(&mut slots, 2, 13), None, "nobody else's");
    }

    #[test]
    fn what_is_stored_of_positions_that_are_computed_again_is_dropped() {
        let mut slots = slots();
        note(&mut slots, 1, 0..20);
        let index = slots.prepare(SeqId(1), 21, 8).unwrap();
        slots.entered(index);
        note(&mut slots, 1, 10..11);
        assert_eq!(held(&mut slots, 1, 12), Some((vec![10], 10)));
    }

    #[test]
    fn the_last_positions_of_a_long_sequence_are_held() {
        let mut slots = slots();
        let most = BLOCKS * BLOCK_POSITIONS;
        for start in (0..4 * most as u32).step_by(100) {
            note(&mut slots, 1, start..start + 100);
            let (waiting, stored) = held(&mut slots, 1, start as usize + 101).unwrap();
            assert_eq!(waiting, (start..start + 100).collect::<Vec<_>>());
            assert!(stored + waiting.len() + 8 <= most);
            let index = slots.prepare(SeqId(1), start as usize + 101, 8).unwrap();
            let mut blocks = slots.slots[index].blocks.clone();
            blocks.sort_unstable();
            assert_eq!(blocks, (0..BLOCKS as u32).collect::<Vec<_>>());
            slots.entered(index);
        }
        assert!(held(&mut slots, 1, 4 * most).is_none() && slots.slots[0].stored.len() > most - 130);
        note(&mut slots, 2, 0..5 * WAITING_MAX as u32);
        let (waiting, _) = held(&mut slots, 2, 5 * WAITING_MAX + 1).unwrap();
        assert_eq!(waiting, (4 * WAITING_MAX as u32..5 * WAITING_MAX as u32).collect::<Vec<_>>());
    }

    #[test]
    fn sequences_that_ended_make_room() {
        let mut slots = slots();
        (0..SEQUENCES_MAX as u64 + 1).for_each(|id| note(&mut slots, id, 0..3));
        let last = SEQUENCES_MAX as u64;
        assert_eq!((held(&mut slots, 0, 4).is_some(), held(&mut slots, last, 4)), (true, None));
        slots.follow_only(&|id| id != SeqId(0));
        assert_eq!(held(&mut slots, 0, 4), None);
        note(&mut slots, last, 3..4);
        assert_eq!(held(&mut slots, last, 5), Some((vec![3], 0)));
    }
}
