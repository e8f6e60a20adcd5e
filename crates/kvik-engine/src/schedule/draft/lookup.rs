//! Prompt lookup: drafts the tokens that followed an earlier occurrence of the last tokens.
//!
//! Every three consecutive tokens are indexed. Of the positions where the last three tokens occurred before, the one
//! with the longest matching context is continued: an answer that quotes its prompt continues as the prompt did.
//! (Prompt lookup decoding, A. Saxena 2023, with the longest match instead of the first.)

use kvik_cache::{Followers, Token};
use rustc_hash::FxHashMap;

/// Number of tokens that must match for a position to be found.
const GRAM: usize = 3;
/// Maximum number of positions that are compared, latest first.
const PLACES_MAX: usize = 8;
/// Maximum number of tokens that are compared before a position.
const SAME_MAX: usize = 32;

/// An index of the tokens of one sequence.
#[derive(Debug, Default)]
pub(super) struct Lookup {
    /// The position after the latest occurrence of each three tokens.
    latest: FxHashMap<[Token; GRAM], u32>,
    /// For each position, the previous one after the same three tokens; 0 if there is none.
    earlier: Vec<u32>,
}

impl Lookup {
    /// At most `most` tokens that may follow `tokens`, which extends the tokens of the last call.
    pub(super) fn find(&mut self, tokens: &[Token], most: usize) -> Option<Followers> {
        let place = self.index(tokens)?;
        let mut best = (0, 0);
        let places = std::iter::successors(Some(place), |&place| Some(self.earlier[place as usize]));
        for place in places.take_while(|&place| place > 0).take(PLACES_MAX) {
            let same = same_before(tokens, place as usize);
            if same > best.0 {
                best = (same, place as usize);
            }
        }
        let (same, place) = best;
        let period = tokens.len() - place;
        // A match that reaches the end of the tokens repeats from its position.
        let tokens = (0..most).map(|index| tokens[place + index % period]).collect();
        (same >= GRAM).then_some(Followers { tokens, same })
    }

    /// Indexes the new tokens; returns the latest earlier position after the same three tokens as the last ones.
    fn index(&mut self, tokens: &[Token]) -> Option<u32> {
        if self.earlier.is_empty() {
            self.earlier.resize(GRAM.min(tokens.len() + 1), 0);
        }
        for end in self.earlier.len()..=tokens.len() {
            let Some(gram) = tokens[..end].last_chunk::<GRAM>() else {
                self.earlier.push(0);
                continue;
            };
            self.earlier.push(self.latest.insert(*gram, end as u32).unwrap_or(0));
        }
        self.earlier.last().copied().filter(|&place| place > 0)
    }
}

/// Number of tokens before a position that equal the last tokens.
fn same_before(tokens: &[Token], place: usize) -> usize {
    let before = tokens[..place].iter().rev().zip(tokens.iter().rev());
    before.take(SAME_MAX).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Finds the longest match by scanning all positions.
    fn naive(tokens: &[Token], most: usize) -> Option<Followers> {
        let places = (GRAM..tokens.len()).rev().filter(|&place| same_before(tokens, place) >= GRAM);
        let mut best: Option<(usize, usize)> = None;
        for place in places.take(PLACES_MAX) {
            let same = same_before(tokens, place);
            if best.is_none_or(|(most, _)| same > most) {
                best = Some((same, place));
            }
        }
        let (same, place) = best?;
        let mut all = tokens.to_vec();
        (0..most).for_each(|index| all.push(all[place + index]));
        Some(Followers { tokens: all.split_off(tokens.len()), same })
    }

    proptest! {
        #[test]
        fn the_longest_of_the_latest_places_is_found(
            tokens in prop::collection::vec(0u32..4, 0..80),
            steps in prop::collection::vec(1usize..9, 1..40),
            most in 1usize..12,
        ) {
            let (mut lookup, mut len) = (Lookup::default(), 0);
            for step in steps {
                len = (len + step).min(tokens.len());
                prop_assert_eq!(lookup.find(&tokens[..len], most), naive(&tokens[..len], most));
            }
        }
    }
}
