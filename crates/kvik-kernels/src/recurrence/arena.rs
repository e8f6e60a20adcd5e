//! The arena of recurrent states: slots of equal size in one mapping.

use std::io;

use crate::memory::Memory;

/// States of sequences, addressed by slot.
///
/// The arena knows no owners: its users decide who may write which slot. A slot that was never written is all
/// zeros, which is the state before the first token. The system allocates memory as slots are first written.
#[derive(Debug)]
pub struct StateArena {
    /// Bytes from one slot to the next.
    stride: usize,
    slots: usize,
    memory: Memory,
}

/// Alignment of slots, whole pages on most systems, so that the memory of each can be returned separately. The
/// number is the same on all systems, since states are also stored on disk.
const PAGE: usize = 16 << 10;

impl StateArena {
    /// Maps `slots` slots for states of `floats` numbers.
    ///
    /// # Errors
    /// If the system has no address space left.
    pub fn new(floats: usize, slots: usize) -> io::Result<StateArena> {
        let stride = StateArena::state_bytes_of(floats);
        let all = stride.checked_mul(slots).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(StateArena { stride, slots, memory: Memory::sparse(all)? })
    }

    /// Bytes that a state of `floats` numbers takes in an arena.
    pub fn state_bytes_of(floats: usize) -> usize {
        (floats * size_of::<f32>()).next_multiple_of(PAGE)
    }

    /// Bytes of one state, including the padding of its last page.
    pub fn state_bytes(&self) -> usize {
        self.stride
    }

    /// The number of slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// The bytes of a slot.
    ///
    /// # Panics
    /// If the slot does not exist.
    pub fn state(&self, slot: u32) -> &[u8] {
        let start = self.start(slot);
        &self.memory.bytes()[start..start + self.stride]
    }

    /// The bytes of a slot, to be replaced by those of a state stored elsewhere.
    ///
    /// # Panics
    /// If the slot does not exist.
    pub fn state_mut(&mut self, slot: u32) -> &mut [u8] {
        let start = self.start(slot);
        let end = start + self.stride;
        &mut self.memory.bytes_mut()[start..end]
    }

    /// Copies the state of `from` to `to`.
    ///
    /// # Panics
    /// If a slot does not exist.
    pub fn copy(&mut self, from: u32, to: u32) {
        let (from, to) = (self.start(from), self.start(to));
        let stride = self.stride;
        self.memory.bytes_mut().copy_within(from..from + stride, to);
    }

    /// Resets a slot to the state before the first token, and returns its memory to the system.
    ///
    /// # Panics
    /// If the slot does not exist.
    pub fn release(&mut self, slot: u32) {
        let start = self.start(slot);
        self.memory.clear(start..start + self.stride);
    }

    /// The `len` elements of a state from `offset` on.
    ///
    /// # Panics
    /// If they exceed the slot.
    ///
    /// # Safety
    /// As long as the returned slice is used, no other thread writes these elements.
    pub(super) unsafe fn numbers(&self, slot: u32, offset: usize, len: usize) -> &[f32] {
        // SAFETY: `len` numbers from `place` on are inside the mapping, zeroed or written.
        unsafe { std::slice::from_raw_parts(self.place(slot, offset, len), len) }
    }

    /// Address of the `len` elements of a state from `offset` on.
    ///
    /// # Panics
    /// If they exceed the slot.
    pub(super) fn place(&self, slot: u32, offset: usize, len: usize) -> *mut f32 {
        let start = self.start(slot);
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.stride / size_of::<f32>());
        assert!(inside, "numbers {offset}+{len} leave a state of {} bytes", self.stride);
        self.memory.start().wrapping_add(start).cast::<f32>().wrapping_add(offset)
    }

    fn start(&self, slot: u32) -> usize {
        assert!((slot as usize) < self.slots, "state {slot} of {}", self.slots);
        slot as usize * self.stride
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_apart_and_zero_until_they_are_written() {
        let mut arena = StateArena::new(5000, 4).unwrap();
        assert_eq!((arena.state_bytes(), arena.slots()), (2 * PAGE, 4));
        arena.state_mut(1).fill(7);
        arena.copy(1, 3);
        let filled = |arena: &StateArena, slot| {
            let state = arena.state(slot);
            assert!(state.iter().all(|&byte| byte == state[0]));
            state[0]
        };
        assert_eq!([0, 1, 2, 3].map(|slot| filled(&arena, slot)), [0, 7, 0, 7]);
        arena.release(1);
        assert_eq!([0, 1, 2, 3].map(|slot| filled(&arena, slot)), [0, 0, 0, 7]);
        arena.state_mut(1).fill(9);
        assert_eq!(filled(&arena, 1), 9);
    }

    #[test]
    fn models_without_states_have_an_empty_arena() {
        let arena = StateArena::new(0, 0).unwrap();
        assert_eq!((arena.state_bytes(), arena.slots()), (0, 0));
    }

    #[test]
    #[should_panic(expected = "state 2 of 2")]
    fn a_slot_beyond_the_last_is_refused() {
        StateArena::new(1, 2).unwrap().release(2);
    }
}
