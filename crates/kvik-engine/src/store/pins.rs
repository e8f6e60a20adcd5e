//! Pin changes that wait for the writer: only the last one of each slot, however long the disk takes.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvik_cache::tier::SlotId;

/// The pin changes that wait.
#[derive(Debug, Default)]
pub(super) struct Pins(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// By slot: the number of the change that waits in the writer's queue, and whether it pins or unpins.
    wanted: BTreeMap<SlotId, (u64, bool)>,
}

impl Pins {
    /// Records whether the block in a slot is to be pinned. Returns the number of the change to queue, or `None` if a
    /// change waits already, which then does this instead.
    pub(super) fn want(&self, slot: SlotId, pinned: bool) -> Option<u64> {
        let mut state = self.lock();
        if let Some((_, wanted)) = state.wanted.get_mut(&slot) {
            *wanted = pinned;
            return None;
        }
        let number = state.next;
        state.next += 1;
        state.wanted.insert(slot, (number, pinned));
        Some(number)
    }

    /// Discards the waiting change of a slot, because its block is to be replaced or erased.
    pub(super) fn forget(&self, slot: SlotId) {
        self.lock().wanted.remove(&slot);
    }

    /// Whether the change with this number is to pin or unpin; `None` if it was discarded.
    pub(super) fn take(&self, slot: SlotId, number: u64) -> Option<bool> {
        let mut state = self.lock();
        state.wanted.get(&slot).filter(|(wanted, _)| *wanted == number)?;
        state.wanted.remove(&slot).map(|(_, pinned)| pinned)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change of the map is a single call, so a panic leaves it consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: SlotId = SlotId(3);

    #[test]
    fn the_last_of_many_is_done_once() {
        let pins = Pins::default();
        let queued: Vec<u64> = (0..1001).filter_map(|i| pins.want(SLOT, i % 2 == 0)).collect();
        assert_eq!(queued, [0]);
        assert_eq!((pins.take(SLOT, 0), pins.take(SLOT, 0)), (Some(true), None));
    }

    #[test]
    fn what_was_wanted_of_a_block_is_not_done_to_the_next_one() {
        let pins = Pins::default();
        let old = pins.want(SLOT, true).unwrap();
        pins.forget(SLOT);
        let new = pins.want(SLOT, false).unwrap();
        assert_eq!((pins.take(SLOT, old), pins.take(SLOT, new)), (None, Some(false)));
    }
}
