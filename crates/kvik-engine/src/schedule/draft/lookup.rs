//! Prompt lookup: drafts the tokens that followed an earlier occurrence of the last tokens.
//!
//! Every three consecutive tokens are indexed. Of the positions where the last three tokens occurred before, the one
//! with the longest matching context is continued: an answer that quotes its prompt continues as the prompt did.
//! (Prompt lookup decoding, A. Saxena 2023, with the longest match instead of the first.)

use std::sync::{Arc, OnceLock};

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
    /// Of its prompt, which all choices of a request share: indexing a long one takes milliseconds.
    prompt: Arc<OnceLock<Places>>,
    prompt_len: usize,
    /// Of the tokens after it.
    answer: Places,
}

/// An index of consecutive tokens.
#[derive(Debug, Default)]
struct Places {
    /// The position after the latest occurrence of each three tokens.
    latest: FxHashMap<[Token; GRAM], u32>,
    /// For each position, the previous one after the same three tokens; 0 if there is none.
    earlier: Vec<u32>,
}

impl Places {
    /// Indexes the tokens before each of the next positions up to the end of `tokens`; the first position of all is
    /// `first`, and the places before that are in `before`.
    fn index(&mut self, tokens: &[Token], first: usize, before: Option<&Places>) {
        for end in first + self.earlier.len()..=tokens.len() {
            let gram = tokens[..end].last_chunk::<GRAM>();
            let earlier = gram.map_or(0, |gram| self.replace(*gram, end as u32, before));
            self.earlier.push(earlier);
        }
    }

    /// Records the latest occurrence of three tokens; returns the place after the one before it, or 0.
    fn replace(&mut self, gram: [Token; GRAM], place: u32, before: Option<&Places>) -> u32 {
        let own = self.latest.insert(gram, place);
        own.or_else(|| before?.latest.get(&gram).copied()).unwrap_or(0)
    }
}

impl Lookup {
    /// For a sequence that begins with a prompt of so many tokens.
    pub(super) fn of_prompt(prompt_len: usize) -> Lookup {
        Lookup { prompt_len, ..Lookup::default() }
    }

    /// For another sequence that begins with the same prompt.
    pub(super) fn sibling(&self) -> Lookup {
        Lookup { prompt: self.prompt.clone(), prompt_len: self.prompt_len, answer: Places::default() }
    }

    /// At most `most` tokens that may follow `tokens`, which extends the tokens of the last call.
    pub(super) fn find(&mut self, tokens: &[Token], most: usize) -> Option<Followers> {
        let place = self.index(tokens)?;
        let mut best = (0, 0);
        let places = std::iter::successors(Some(place), |&place| Some(self.earlier(place as usize)));
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
        let prompt = self.prompt.get_or_init(|| {
            let mut places = Places::default();
            places.index(&tokens[..self.prompt_len], 0, None);
            places
        });
        self.answer.index(tokens, self.prompt_len + 1, Some(prompt));
        Some(self.earlier(tokens.len())).filter(|&place| place > 0)
    }

    /// The previous position after the same three tokens as this one; 0 if there is none.
    fn earlier(&self, place: usize) -> u32 {
        match place.checked_sub(self.prompt_len + 1) {
            Some(index) => self.answer.earlier[index],
            None => self.prompt.get().map_or(0, |prompt| prompt.earlier[place]),
        }
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
            prompt_len in 0usize..40,
            steps in prop::collection::vec(1usize..9, 1..40),
            most in 1usize..12,
        ) {
            let prompt_len = prompt_len.min(tokens.len());
            let first = Lookup::of_prompt(prompt_len);
            let (mut choices, mut len) = ([first.sibling(), first], prompt_len);
            for step in steps {
                len = (len + step).min(tokens.len());
                for lookup in &mut choices {
                    prop_assert_eq!(lookup.find(&tokens[..len], most), naive(&tokens[..len], most));
                }
            }
        }
    }

    #[test]
    fn all_choices_index_their_prompt_once() {
        let prompt: Vec<Token> = (0..200).collect();
        let mut first = Lookup::of_prompt(prompt.len());
        let mut others = [first.sibling(), first.sibling()];
        let tokens = [&prompt[..], &[5, 6, 7]].concat();
        let expected = Followers { tokens: vec![8, 9], same: 3 };
        assert_eq!(first.find(&tokens, 2).as_ref(), Some(&expected));
        for other in &mut others {
            assert_eq!(other.prompt.get().map(|prompt| prompt.earlier.len()), Some(201), "it is there");
            assert_eq!(other.find(&tokens, 2).as_ref(), Some(&expected));
            assert_eq!(other.answer.earlier.len(), 3);
        }
    }
}
