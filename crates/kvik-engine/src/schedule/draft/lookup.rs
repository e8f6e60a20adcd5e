//! What followed the last tokens when they stood in the prompt or the answer before.
//!
//! Every three tokens are indexed by themselves. Of the places where the last three stood, the one before which most
//! tokens are the same is gone on from: an answer that quotes its prompt goes on as the prompt did. (Prompt lookup
//! decoding, A. Saxena 2023, with the longest match instead of the first.)

use kvik_cache::{Followers, Token};
use rustc_hash::FxHashMap;

/// Tokens that must be the same for a place to be found.
const GRAM: usize = 3;
/// Places that are compared at most: the latest.
const PLACES_MAX: usize = 8;
/// Tokens that are compared at most before a place.
const SAME_MAX: usize = 32;

/// An index of the tokens of one sequence.
#[derive(Debug, Default)]
pub(super) struct Lookup {
    /// The place after the latest of each three tokens.
    latest: FxHashMap<[Token; GRAM], u32>,
    /// For each place the one before it after the same three tokens; 0 where there is none.
    earlier: Vec<u32>,
}

impl Lookup {
    /// At most `most` tokens that may follow `tokens`, which are those of the last call and more.
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
        // What goes on to the end goes on from the place again.
        let tokens = (0..most).map(|index| tokens[place + index % period]).collect();
        (same >= GRAM).then_some(Followers { tokens, same })
    }

    /// Notes the tokens that are new; the latest place after the same three tokens as the last ones.
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

/// Tokens before a place that are the same as the last ones.
fn same_before(tokens: &[Token], place: usize) -> usize {
    let before = tokens[..place].iter().rev().zip(tokens.iter().rev());
    before.take(SAME_MAX).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The longest match by looking everywhere.
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
