//! Chooses the runs to query in the search for the longest stored prefix of a prompt.
//!
//! If one round can query all ends, it does. Otherwise the search first narrows down the last of the longest runs,
//! which exist if later ones do, by querying `width` of them in each round; then it queries all ends up to the next
//! one.

use kvik_cache::tier::run_ending_at;

/// A search. Ends are numbers of blocks, from 1.
pub(super) struct Search {
    run_max: usize,
    width: usize,
    /// Whether the run with each end exists, if known; index 0 is the empty prefix.
    there: Vec<Option<bool>>,
    has_ended: bool,
}

impl Search {
    pub(super) fn new(blocks: usize, run_max: usize, width: usize) -> Search {
        let mut there = vec![None; blocks + 1];
        there[0] = Some(true);
        Search { run_max, width: width.max(1), there, has_ended: false }
    }

    /// Assumes that the run with this end exists.
    pub(super) fn assume(&mut self, end: usize) {
        self.there[end] = Some(true);
    }

    /// The ends to query next; empty when the search has ended.
    pub(super) fn next(&mut self) -> Vec<usize> {
        let blocks = self.there.len() - 1;
        if std::mem::replace(&mut self.has_ended, blocks <= self.width) {
            return Vec::new();
        }
        if self.has_ended {
            return (1..=blocks).collect();
        }
        let (last, next) = self.bounds();
        let between = next - last - 1;
        if between > 0 {
            let step =
                |nth: usize| last + (nth * (between + 1)).div_ceil(self.width + 1).max(nth).min(between);
            let mut ends: Vec<usize> = (1..=self.width).map(|nth| step(nth) * self.run_max).collect();
            ends.dedup();
            return ends;
        }
        self.has_ended = true;
        (last * self.run_max + 1..=blocks.min(next * self.run_max - 1)).collect()
    }

    /// The last of the longest runs that exists and the first one that does not, counted from 1.
    fn bounds(&self) -> (usize, usize) {
        let count = (self.there.len() - 1) / self.run_max;
        let is = |run: usize, there| self.there[run * self.run_max] == Some(there);
        let last = (0..=count).rev().find(|&run| is(run, true)).unwrap_or(0);
        (last, (last + 1..=count).find(|&run| is(run, false)).unwrap_or(count + 1))
    }

    /// Records which of the queried ends exist.
    pub(super) fn answer(&mut self, ends: &[usize], there: &[bool]) {
        for (&end, &there) in ends.iter().zip(there) {
            self.there[end] = Some(there);
        }
    }

    /// Number of blocks of the longest prefix whose last run exists, and of whose other runs none is known to be
    /// missing.
    pub(super) fn found(&self) -> usize {
        let mut whole = vec![true; self.there.len()];
        let mut found = 0;
        for end in 1..self.there.len() {
            let is_there = self.there[end].unwrap_or(end % self.run_max == 0);
            whole[end] = is_there && whole[run_ending_at(end, self.run_max).start];
            if whole[end] && self.there[end] == Some(true) {
                found = end;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use kvik_cache::tier::runs;
    use proptest::prelude::*;

    use super::*;

    /// Searches among these ends; returns how much was found, and in how many rounds.
    fn search(blocks: usize, run_max: usize, width: usize, there: &HashSet<usize>) -> (usize, usize) {
        let mut search = Search::new(blocks, run_max, width);
        for round in 0.. {
            let ends = search.next();
            if ends.is_empty() {
                return (search.found(), round);
            }
            assert!(ends.iter().all(|end| (1..=blocks).contains(end)));
            search.answer(&ends, &ends.iter().map(|end| there.contains(end)).collect::<Vec<_>>());
        }
        unreachable!()
    }

    proptest! {
        /// Prefixes with the same first blocks were written, whole.
        #[test]
        fn the_longest_beginning_is_found(
            written in prop::collection::vec(1..600_usize, 0..4), blocks in 1..600_usize,
            longest in 0..7_u32, width in prop::sample::select(vec![1, 3, 32, 4096]),
        ) {
            let run_max = 1 << longest;
            let there: HashSet<usize> =
                written.iter().flat_map(|&blocks| runs(blocks, run_max).map(|run| run.end)).collect();
            let (found, rounds) = search(blocks, run_max, width, &there);
            let longest = (1..=blocks).rev().find(|&end| runs(end, run_max).all(|run| there.contains(&run.end)));
            prop_assert_eq!(found, longest.unwrap_or(0));
            let expected = match width {
                4096 => 1,
                width => 2 + (blocks / run_max + 1).ilog(width + 1) as usize,
            };
            prop_assert!(rounds <= expected, "{} rounds", rounds);
        }

        #[test]
        fn with_holes_what_is_found_ends_with_a_run_that_is_there(
            there in prop::collection::hash_set(1..200_usize, 0..100), blocks in 1..200_usize,
            longest in 0..7_u32, width in 1..40_usize,
        ) {
            let (found, _) = search(blocks, 1 << longest, width, &there);
            prop_assert!(found == 0 || there.contains(&found));
            if width >= blocks {
                prop_assert!(runs(found, 1 << longest).all(|run| there.contains(&run.end)));
            }
        }
    }
}
