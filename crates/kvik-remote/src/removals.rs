//! Values that are to be removed, and the writes that may still store them.
//!
//! A run that waits to be written when it is deleted, or is being sent, would be stored behind its removal. So the end
//! of such a write removes the value once more, and a value counts as removed when no write of it is left.

use std::collections::{HashMap, HashSet};

use crate::names::Key;

/// Values that are to be removed, and pending writes.
#[derive(Default)]
pub(crate) struct Removals {
    /// Values that are to be removed and may still be stored.
    forgetting: HashSet<Key>,
    /// Numbers of the writes of each value that are queued or in flight.
    writing: HashMap<Key, usize>,
}

impl Removals {
    /// Notes that these values are to be removed.
    pub(crate) fn begin(&mut self, keys: &[Key]) {
        self.forgetting.extend(keys);
    }

    /// Notes that these values were removed. Those with pending writes remain to be removed.
    pub(crate) fn removed(&mut self, keys: &[Key]) {
        for key in keys {
            if !self.writing.contains_key(key) {
                self.forgetting.remove(key);
            }
        }
    }

    /// Returns whether a value is to be removed.
    pub(crate) fn is_forgetting(&self, key: &Key) -> bool {
        self.forgetting.contains(key)
    }

    /// Number of values that are to be removed.
    pub(crate) fn forgetting(&self) -> usize {
        self.forgetting.len()
    }

    /// Notes a write, which is pending from now on.
    pub(crate) fn begin_write(&mut self, key: Key) {
        *self.writing.entry(key).or_default() += 1;
    }

    /// Ends a write, unless its value is to be removed. Returns whether it has ended: one that has not ends with
    /// [`end_removed_write`](Removals::end_removed_write), after the value was removed.
    pub(crate) fn end_write(&mut self, key: &Key) -> bool {
        let ends = !self.is_forgetting(key);
        if ends {
            self.uncount(key);
        }
        ends
    }

    /// Ends a write whose value was to be removed; `is_removed` if the removal succeeded.
    pub(crate) fn end_removed_write(&mut self, key: &Key, is_removed: bool) {
        self.uncount(key);
        if is_removed {
            self.removed(&[*key]);
        }
    }

    fn uncount(&mut self, key: &Key) {
        if let Some(writes) = self.writing.get_mut(key) {
            *writes -= 1;
            if *writes == 0 {
                self.writing.remove(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::OwnerTag;

    fn key(number: u128) -> Key {
        Key { owner: OwnerTag([0; 8]), name: number.to_le_bytes() }
    }

    #[test]
    fn a_value_is_removed_when_no_write_of_it_is_left() {
        let mut removals = Removals::default();
        let (one, two) = (key(1), key(2));
        removals.begin_write(one);
        assert!(removals.end_write(&one), "nobody deletes it");
        removals.begin_write(one);
        removals.begin_write(one);
        removals.begin(&[one, two]);
        removals.removed(&[one, two]);
        assert_eq!((removals.forgetting(), removals.is_forgetting(&one)), (1, true));
        assert!(!removals.end_write(&one), "its value is removed first");
        removals.end_removed_write(&one, true);
        assert_eq!(removals.forgetting(), 1, "the other write may store it");
        assert!(!removals.end_write(&one));
        removals.end_removed_write(&one, true);
        assert_eq!(removals.forgetting(), 0);
    }

    #[test]
    fn a_removal_that_failed_remains() {
        let mut removals = Removals::default();
        removals.begin_write(key(1));
        removals.begin(&[key(1)]);
        removals.removed(&[key(1)]);
        assert!(!removals.end_write(&key(1)));
        removals.end_removed_write(&key(1), false);
        assert_eq!(removals.forgetting(), 1);
        removals.removed(&[key(1)]);
        assert_eq!(removals.forgetting(), 0);
    }
}
