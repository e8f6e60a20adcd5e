//! Fingerprints of prompts: how many leading tokens two prompts share, without their tokens.

use std::hash::{BuildHasher, Hash, RandomState};
use std::iter;

use kvik_cache::{BLOCK_POSITIONS, Token};

/// The fingerprint of a prompt, under the key of one [`RandomState`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptMarks {
    /// Tokens of the prompt.
    pub tokens: usize,
    /// The hash of what separates prompts; then for each block of 16 tokens, the last one possibly shorter, the hash of all
    /// up to its end.
    pub chain: Vec<u64>,
}

impl PromptMarks {
    /// The fingerprint of a prompt. Prompts of different `world`s share nothing.
    pub fn of(hasher: &RandomState, world: impl Hash, prompt: &[Token]) -> PromptMarks {
        let first = hasher.hash_one(world);
        let blocks = prompt.chunks(BLOCK_POSITIONS).scan(first, |before, block| {
            *before = hasher.hash_one((*before, block));
            Some(*before)
        });
        PromptMarks { tokens: prompt.len(), chain: iter::once(first).chain(blocks).collect() }
    }

    /// Leading tokens that `prompt`, which has this fingerprint, shares with an earlier one, in whole blocks of the latter.
    pub fn common(&self, hasher: &RandomState, earlier: &PromptMarks, prompt: &[Token]) -> usize {
        let equal = self.chain.iter().zip(&earlier.chain).take_while(|(own, other)| own == other).count();
        let Some(last) = equal.checked_sub(1) else { return 0 };
        let common = (last * BLOCK_POSITIONS).min(earlier.tokens);
        // The last block of the earlier prompt may be the beginning of a block of this one.
        let is_begun =
            earlier.chain.get(equal).filter(|_| equal + 1 == earlier.chain.len()).is_some_and(|&hash| {
                let rest = prompt.get(common..earlier.tokens);
                rest.is_some_and(|rest| hasher.hash_one((self.chain[last], rest)) == hash)
            });
        if is_begun { earlier.tokens } else { common }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_tokens_are_counted_in_blocks_of_the_earlier_prompt() {
        let hasher = RandomState::new();
        let long: Vec<Token> = (0..100).collect();
        let mut other = long.clone();
        other[40] = 7;
        let marks = |prompt: &[Token]| PromptMarks::of(&hasher, 0, prompt);
        let check = |earlier: &[Token], now: &[Token], expect| {
            assert_eq!(marks(now).common(&hasher, &marks(earlier), now), expect);
        };
        for tokens in [1, 15, 16, 17, 32, 40, 99, 100] {
            check(&long[..tokens], &long, tokens);
        }
        check(&long, &other, 32);
        check(&long[..41], &other, 32);
        check(&long, &long[..40], 32);
        check(&long, &[], 0);
        let elsewhere = PromptMarks::of(&hasher, 1, &long);
        assert_eq!(elsewhere.common(&hasher, &marks(&long), &long), 0, "another world shares nothing");
    }
}
