//! Values known to exist, so that they are not written again and lookups need not query them.

use std::time::Duration;

use rustc_hash::FxHashMap;
use tokio::time::Instant;

use crate::names::Key;

/// Maximum number of keys in a generation; there are two, of 4 MiB each when full.
const GENERATION_MAX: usize = 1 << 16;

/// The most recently used values, by key, with the time at which a use was last reported to the store.
#[derive(Default)]
pub(crate) struct Known {
    young: FxHashMap<Key, Option<Instant>>,
    old: FxHashMap<Key, Option<Instant>>,
}

impl Known {
    /// Notes that a value exists; `told` is true if its use has just been reported to the store, as by writing it.
    pub(crate) fn insert(&mut self, key: Key, told: bool) {
        let before = self.take(&key).flatten();
        self.put(key, if told { Some(Instant::now()) } else { before });
    }

    fn put(&mut self, key: Key, told: Option<Instant>) {
        if self.young.len() >= GENERATION_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, told);
    }

    /// Notes that a value does not exist.
    pub(crate) fn remove(&mut self, key: &Key) {
        self.take(key);
    }

    /// Notes that the report of a use did not reach the store: the next use is reported.
    pub(crate) fn report_failed(&mut self, key: &Key) {
        if self.take(key).is_some() {
            self.put(*key, None);
        }
    }

    /// Notes that the store may have lost any value.
    pub(crate) fn clear(&mut self) {
        *self = Known::default();
    }

    fn take(&mut self, key: &Key) -> Option<Option<Instant>> {
        let (young, old) = (self.young.remove(key), self.old.remove(key));
        young.or(old)
    }

    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.young.contains_key(key) || self.old.contains_key(key)
    }

    /// Returns whether a use of a value is to be reported to the store, and then counts as reported; `None` for an
    /// unknown value.
    pub(crate) fn is_due(&mut self, key: &Key, after: Duration) -> Option<bool> {
        let told = self.take(key)?;
        let is_due = told.is_none_or(|told| told.elapsed() >= after);
        self.put(*key, if is_due { Some(Instant::now()) } else { told });
        Some(is_due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::OwnerTag;

    fn key(number: usize) -> Key {
        Key { owner: OwnerTag([0; 8]), name: (number as u128).to_le_bytes() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_use_is_due_once_in_a_while() {
        let (mut known, after) = (Known::default(), Duration::from_secs(10));
        assert_eq!(known.is_due(&key(1), after), None);
        known.insert(key(1), false);
        assert_eq!(known.is_due(&key(1), after), Some(true), "it was only seen");
        known.insert(key(1), false);
        assert_eq!(known.is_due(&key(1), after), Some(false), "to see it again says no more");
        tokio::time::advance(after).await;
        assert_eq!(known.is_due(&key(1), after), Some(true));
        assert_eq!(known.is_due(&key(1), after), Some(false));
        known.report_failed(&key(1));
        assert_eq!(known.is_due(&key(1), after), Some(true), "the store has not heard of it");
        known.remove(&key(1));
        assert_eq!(known.is_due(&key(1), after), None);
        known.report_failed(&key(1));
        assert!(!known.contains(&key(1)), "a failed report makes nothing known");
        known.insert(key(2), true);
        known.clear();
        assert!(!known.contains(&key(2)));
    }

    #[test]
    fn the_ones_used_last_are_known_and_they_are_bounded() {
        let mut known = Known::default();
        for number in 0..5 * GENERATION_MAX {
            known.insert(key(number), true);
            known.is_due(&key(0), Duration::MAX);
        }
        assert!(known.contains(&key(0)) && known.contains(&key(5 * GENERATION_MAX - 1)));
        assert!(!known.contains(&key(1)));
        assert!(known.young.len() + known.old.len() <= 2 * GENERATION_MAX);
    }
}
