//! Ghosts: a bounded memory of evicted blocks. It explains misses, and distinguishes a recomputed block from a new
//! one.
//!
//! Owns fingerprints and decides nothing. Each has one possible slot, so remembering is one write, and a later
//! ghost in the same slot displaces it. A set that dropped the oldest first took 80 ns a block, a third of the time
//! of an insertion into a full cache.

use std::time::Duration;

use super::policies::Policy;
use super::ranking::Return;
use crate::hash::Fingerprint;
use crate::ids::Token;

/// Step of the caller's clock above which it was set: a board that starts in 1970 is told the time later.
const SET_FROM: Duration = Duration::from_secs(365 * 24 * 3600);

/// Why a block was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The policy chose it.
    Evicted(Policy),
    /// Its time to live ended.
    Expired,
}

/// A lost block: 8 bytes, 16 with its fingerprint, so that many fit into the CPU's caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ghost {
    /// When it was lost, on the ghosts' clock, in tenths of a second: enough for 13 years.
    at_tenths: u32,
    pub(crate) cause: Cause,
    /// How often it had been reused; no more than 255 are counted.
    pub(crate) reuses: u8,
}

const _: () = assert!(size_of::<Option<(Fingerprint, Ghost)>>() == 16);

impl Ghost {
    /// A block that was lost at time `at` on the ghosts' clock; more than 255 reuses count as 255.
    pub(crate) fn new(at: Duration, cause: Cause, reuses: u32) -> Ghost {
        let at_tenths = u32::try_from(at.as_millis() / 100).unwrap_or(u32::MAX);
        Ghost { at_tenths, cause, reuses: u8::try_from(reuses).unwrap_or(u8::MAX) }
    }
}

/// Recently evicted blocks.
#[derive(Debug)]
pub(crate) struct Ghosts {
    /// The slots; their number is a power of two or 0.
    slots: Vec<Option<(Fingerprint, Ghost)>>,
    /// Numbers of ghosts of blocks that were never reused, and of the others.
    counts: [usize; 2],
    /// How far the caller's clock was set forward. The ghosts' clock is behind by it, since no block was lost longer ago
    /// for that.
    set_by: Duration,
}

impl Ghosts {
    /// Remembers about `count` blocks: as many slots as the next power of two.
    pub(crate) fn new(count: usize) -> Ghosts {
        let slots = if count == 0 { 0 } else { count.next_power_of_two() };
        Ghosts { slots: vec![None; slots], counts: [0; 2], set_by: Duration::ZERO }
    }

    /// Follows the caller's clock from one time to a later one.
    pub(crate) fn follow_clock(&mut self, from: Duration, to: Duration) {
        let step = to.saturating_sub(from);
        if step > SET_FROM {
            self.set_by = self.set_by.saturating_add(step);
        }
    }

    /// The ghost of a block that is lost at time `at` on the caller's clock.
    pub(crate) fn ghost(&self, at: Duration, cause: Cause, reuses: u32) -> Ghost {
        Ghost::new(at.saturating_sub(self.set_by), cause, reuses)
    }

    /// When a block was lost, on the caller's clock, to a tenth of a second.
    pub(crate) fn lost_at(&self, ghost: Ghost) -> Duration {
        self.set_by.saturating_add(Duration::from_millis(u64::from(ghost.at_tenths) * 100))
    }

    /// Notes that a block has been evicted.
    pub(crate) fn remember(&mut self, evicted: Fingerprint, ghost: Ghost) {
        let Some(slot) = self.slot(evicted) else { return };
        if let Some((_, displaced)) = self.slots[slot].replace((evicted, ghost)) {
            self.counts[usize::from(displaced.reuses > 0)] -= 1;
        }
        self.counts[usize::from(ghost.reuses > 0)] += 1;
    }

    /// Returns the ghost's facts for a block that has been computed again.
    pub(crate) fn back(&self, computed: Fingerprint) -> Option<Return> {
        let ghost = self.get(computed)?;
        let [ghosts_recent, ghosts_frequent] = self.counts;
        Some(Return { reuses: ghost.reuses.into(), ghosts_recent, ghosts_frequent })
    }

    /// Returns how a block was lost here that held more than the first `known` tokens of `rest`.
    ///
    /// `rest` (at most one block) follows the block `before`. A block that was partial when it was lost has a
    /// fingerprint of fewer tokens, so every length is looked up, the longest first.
    pub(crate) fn lost(&self, before: Fingerprint, rest: &[Token], known: usize) -> Option<Ghost> {
        (known + 1..=rest.len()).rev().find_map(|length| self.get(before.child(&rest[..length])))
    }

    fn get(&self, evicted: Fingerprint) -> Option<Ghost> {
        let (fingerprint, ghost) = self.slots[self.slot(evicted)?]?;
        (fingerprint == evicted).then_some(ghost)
    }

    fn slot(&self, fingerprint: Fingerprint) -> Option<usize> {
        let mask = self.slots.len().checked_sub(1)?;
        Some(fingerprint.0.get() as usize & mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVICTED: Ghost = Ghost { at_tenths: 70, cause: Cause::Evicted(Policy::Lru), reuses: 0 };

    #[test]
    fn a_later_one_displaces_an_earlier_one() {
        let root = Fingerprint::UNUSED;
        let mut ghosts = Ghosts::new(1);
        for token in [1, 2] {
            ghosts.remember(root.child(&[token]), EVICTED);
        }
        assert_eq!([1, 2].map(|token| ghosts.lost(root, &[token], 0)), [None, Some(EVICTED)]);
    }

    #[test]
    fn without_slots_nothing_is_remembered() {
        let root = Fingerprint::UNUSED;
        let mut ghosts = Ghosts::new(0);
        ghosts.remember(root.child(&[1]), EVICTED);
        assert_eq!(ghosts.lost(root, &[1], 0), None);
    }

    #[test]
    fn a_clock_that_is_set_changes_no_age() {
        let [second, day] = [1, 24 * 3600].map(Duration::from_secs);
        let mut ghosts = Ghosts::new(8);
        let before = ghosts.ghost(9 * second, Cause::Expired, 0);
        // The machine sleeps for a month; then it is told the time, twice.
        let mut now = 10 * second;
        for step in [30 * day, 20_000 * day, 400 * day] {
            ghosts.follow_clock(now, now + step);
            now += step;
            assert_eq!(now - ghosts.lost_at(before), 30 * day + second, "after {step:?}");
            let here = ghosts.ghost(now, Cause::Expired, 0);
            assert_eq!(ghosts.lost_at(here), now);
        }
    }

    #[test]
    fn a_partial_block_is_found_by_its_first_tokens() {
        let root = Fingerprint::UNUSED;
        let mut ghosts = Ghosts::new(8);
        ghosts.remember(root.child(&[5, 6]), EVICTED);
        assert_eq!(ghosts.lost(root, &[5, 6, 7, 8], 0), Some(EVICTED));
        assert_eq!(ghosts.lost(root, &[5, 6, 7, 8], 1), Some(EVICTED));
        assert_eq!(ghosts.lost(root, &[5, 6, 7, 8], 2), None, "two tokens are known anyway");
    }

    #[test]
    fn what_comes_back_is_known_and_counted() {
        let blocks = [1, 2, 3].map(|token| Fingerprint::UNUSED.child(&[token]));
        let mut ghosts = Ghosts::new(1 << 10);
        for (block, reuses) in blocks.into_iter().zip([0, 0, 4]) {
            ghosts.remember(block, Ghost { reuses, ..EVICTED });
        }
        let back = ghosts.back(blocks[2]).unwrap();
        assert_eq!((back.reuses, back.ghosts_recent, back.ghosts_frequent), (4, 2, 1));
        ghosts.remember(blocks[0], Ghost { reuses: 1, ..EVICTED });
        assert_eq!(ghosts.back(blocks[0]).unwrap().ghosts_frequent, 2);
        assert!(ghosts.back(blocks[0].child(&[1])).is_none());
    }
}
