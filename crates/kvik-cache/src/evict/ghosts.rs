//! A bounded memory of what was evicted, so that a miss can be explained.
//!
//! Owns fingerprints only, oldest forgotten first. Never decides anything.

use std::collections::VecDeque;

use rustc_hash::FxHashSet;

use crate::hash::Fingerprint;
use crate::ids::Token;

/// The blocks evicted last.
#[derive(Debug)]
pub(crate) struct Ghosts {
    known: FxHashSet<Fingerprint>,
    oldest_first: VecDeque<Fingerprint>,
    count_max: usize,
}

impl Ghosts {
    pub(crate) fn new(count_max: usize) -> Ghosts {
        Ghosts { known: FxHashSet::default(), oldest_first: VecDeque::new(), count_max }
    }

    /// Notes that a block has been evicted.
    pub(crate) fn remember(&mut self, evicted: Fingerprint) {
        if self.count_max == 0 || !self.known.insert(evicted) {
            return;
        }
        self.oldest_first.push_back(evicted);
        if self.oldest_first.len() > self.count_max {
            let forgotten = self.oldest_first.pop_front().expect("it holds more than it may");
            self.known.remove(&forgotten);
        }
    }

    /// Whether a block was evicted here that held more than the first `known` tokens of `rest`.
    ///
    /// `rest` (at most one block) follows the block `before`. A block that was partial when it
    /// went is known by fewer tokens, so every length counts.
    pub(crate) fn lost(&self, before: Fingerprint, rest: &[Token], known: usize) -> bool {
        !self.known.is_empty()
            && (known + 1..=rest.len()).rev().any(|n| self.known.contains(&before.child(&rest[..n])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_first() {
        let root = Fingerprint(1);
        let mut ghosts = Ghosts::new(2);
        for token in [1, 2, 2, 3] {
            ghosts.remember(root.child(&[token]));
        }
        let lost = [1, 2, 3].map(|token| ghosts.lost(root, &[token], 0));
        assert_eq!(lost, [false, true, true]);
    }

    #[test]
    fn a_partial_block_is_found_by_its_head() {
        let root = Fingerprint(1);
        let mut ghosts = Ghosts::new(8);
        ghosts.remember(root.child(&[5, 6]));
        assert!(ghosts.lost(root, &[5, 6, 7, 8], 0));
        assert!(ghosts.lost(root, &[5, 6, 7, 8], 1));
        assert!(!ghosts.lost(root, &[5, 6, 7, 8], 2), "two tokens are known anyway");
    }
}
