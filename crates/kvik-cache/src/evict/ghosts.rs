//! A bounded memory of what was evicted: it explains a miss, and tells what comes back from what
//! is new.
//!
//! Owns fingerprints and decides nothing. Each has one place it can be in, so remembering is one
//! write; what is remembered later on the same place displaces it. A set that forgets the oldest
//! first took 80 ns a block, a third of the time of an insertion into a full cache.

use std::time::Duration;

use super::{Policy, Return};
use crate::hash::Fingerprint;
use crate::ids::Token;

/// How a block came to be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The policy chose it.
    Evicted(Policy),
    /// It outlived its time to live.
    Expired,
}

/// What is remembered of a lost block: 8 bytes, 16 with its fingerprint, so that many fit into the
/// CPU's caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Past {
    /// When it went, on the caller's clock, in tenths of a second: enough for 13 years.
    at_tenths: u32,
    pub(crate) cause: Cause,
    /// How often it had been reused; no more than 255 are counted.
    pub(crate) reuses: u8,
}

const _: () = assert!(size_of::<Option<(Fingerprint, Past)>>() == 16);

impl Past {
    /// A block that was lost `at` a time; one that was reused more than 255 times counts as 255.
    pub(crate) fn new(at: Duration, cause: Cause, reuses: u32) -> Past {
        let at_tenths = u32::try_from(at.as_millis() / 100).unwrap_or(u32::MAX);
        Past { at_tenths, cause, reuses: u8::try_from(reuses).unwrap_or(u8::MAX) }
    }

    /// When it went, on the caller's clock, to a tenth of a second.
    pub(crate) fn at(self) -> Duration {
        Duration::from_millis(u64::from(self.at_tenths) * 100)
    }
}

/// Blocks evicted lately.
#[derive(Debug)]
pub(crate) struct Ghosts {
    /// A power of two of places, or none.
    places: Vec<Option<(Fingerprint, Past)>>,
    /// Places of blocks that were never reused, and of the others.
    counts: [usize; 2],
}

impl Ghosts {
    /// Remembers about `count` blocks: as many places as the next power of two.
    pub(crate) fn new(count: usize) -> Ghosts {
        let places = if count == 0 { 0 } else { count.next_power_of_two() };
        Ghosts { places: vec![None; places], counts: [0; 2] }
    }

    /// Notes that a block has been evicted.
    pub(crate) fn remember(&mut self, evicted: Fingerprint, past: Past) {
        let Some(place) = self.place(evicted) else { return };
        if let Some((_, displaced)) = self.places[place].replace((evicted, past)) {
            self.counts[usize::from(displaced.reuses > 0)] -= 1;
        }
        self.counts[usize::from(past.reuses > 0)] += 1;
    }

    /// What is known of a block that has been computed again.
    pub(crate) fn back(&self, computed: Fingerprint) -> Option<Return> {
        let past = self.past(computed)?;
        let [ghosts_recent, ghosts_frequent] = self.counts;
        Some(Return { reuses: past.reuses.into(), ghosts_recent, ghosts_frequent })
    }

    /// How a block was lost here that held more than the first `known` tokens of `rest`.
    ///
    /// `rest` (at most one block) follows the block `before`. A block that was partial when it
    /// went is known by fewer tokens, so every length counts, the longest first.
    pub(crate) fn lost(&self, before: Fingerprint, rest: &[Token], known: usize) -> Option<Past> {
        (known + 1..=rest.len()).rev().find_map(|length| self.past(before.child(&rest[..length])))
    }

    fn past(&self, evicted: Fingerprint) -> Option<Past> {
        let (fingerprint, past) = self.places[self.place(evicted)?]?;
        (fingerprint == evicted).then_some(past)
    }

    fn place(&self, fingerprint: Fingerprint) -> Option<usize> {
        let mask = self.places.len().checked_sub(1)?;
        Some(fingerprint.0.get() as usize & mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVICTED: Past = Past { at_tenths: 70, cause: Cause::Evicted(Policy::Lru), reuses: 0 };

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
    fn without_places_nothing_is_remembered() {
        let root = Fingerprint::UNUSED;
        let mut ghosts = Ghosts::new(0);
        ghosts.remember(root.child(&[1]), EVICTED);
        assert_eq!(ghosts.lost(root, &[1], 0), None);
    }

    #[test]
    fn a_partial_block_is_found_by_its_head() {
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
            ghosts.remember(block, Past { reuses, ..EVICTED });
        }
        let back = ghosts.back(blocks[2]).unwrap();
        assert_eq!((back.reuses, back.ghosts_recent, back.ghosts_frequent), (4, 2, 1));
        ghosts.remember(blocks[0], Past { reuses: 1, ..EVICTED });
        assert_eq!(ghosts.back(blocks[0]).unwrap().ghosts_frequent, 2);
        assert!(ghosts.back(blocks[0].child(&[1])).is_none());
    }
}
