//! Removals of blocks that failed, and when they are tried again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kvik_cache::tier::SlotId;

use super::slab::Removal;

/// Time between a failure and the next attempt.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The removals that are to be tried again.
#[derive(Debug, Default)]
pub(super) struct Retries {
    waiting: BTreeMap<SlotId, Removal>,
    /// When all of them are tried again; `None` if there are none.
    due: Option<Instant>,
}

impl Retries {
    /// Time until the next attempt; `None` if nothing is to be tried again.
    pub(super) fn left(&self, now: Instant) -> Option<Duration> {
        self.due.map(|due| due.saturating_duration_since(now))
    }

    /// Adds a removal that failed. It does not put off the others.
    pub(super) fn add(&mut self, slot: SlotId, why: Removal, now: Instant) {
        self.waiting.insert(slot, why);
        self.due.get_or_insert(now + RETRY_AFTER);
    }

    /// Takes the removal of a slot, if it waits.
    pub(super) fn take(&mut self, slot: SlotId) -> Option<Removal> {
        let why = self.waiting.remove(&slot);
        self.due = self.due.filter(|_| !self.waiting.is_empty());
        why
    }

    /// Takes all removals for an attempt.
    pub(super) fn take_all(&mut self) -> BTreeMap<SlotId, Removal> {
        self.due = None;
        std::mem::take(&mut self.waiting)
    }

    /// Notes the end of an attempt. An attempt at many slots of a failing disk may itself take longer than the time between
    /// two attempts: what waits in the queue has its turn in between.
    pub(super) fn attempted(&mut self, now: Instant) {
        self.due = self.due.map(|_| now + RETRY_AFTER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: [(SlotId, Removal); 2] = [(SlotId(1), Removal::Erasure), (SlotId(2), Removal::Eviction)];

    #[test]
    fn an_attempt_that_takes_long_is_followed_by_a_pause() {
        let (mut retries, started) = (Retries::default(), Instant::now());
        let at = |ms| started + Duration::from_millis(ms);
        assert_eq!(retries.left(at(0)), None);
        for fails_ms in [[0, 900], [2_000, 9_000], [20_000, 20_001]] {
            for ((slot, why), fail_ms) in SLOTS.into_iter().zip(fails_ms) {
                retries.add(slot, why, at(fail_ms));
            }
            let first = at(fails_ms[0]) + RETRY_AFTER;
            assert_eq!(retries.left(at(fails_ms[0])), Some(RETRY_AFTER));
            assert_eq!(retries.left(first), Some(Duration::ZERO), "the second does not put off the first");
            retries.attempted(at(fails_ms[1]));
            assert_eq!(retries.left(at(fails_ms[1])), Some(RETRY_AFTER));
            assert_eq!(retries.take_all(), BTreeMap::from(SLOTS));
            assert_eq!(retries.left(first), None);
        }
    }

    #[test]
    fn what_was_done_otherwise_is_not_tried_again() {
        let (mut retries, now) = (Retries::default(), Instant::now());
        SLOTS.into_iter().for_each(|(slot, why)| retries.add(slot, why, now));
        for ((slot, why), left) in SLOTS.into_iter().zip([Some(RETRY_AFTER), None]) {
            assert_eq!((retries.take(slot), retries.take(slot)), (Some(why), None));
            assert_eq!(retries.left(now), left);
        }
    }
}
