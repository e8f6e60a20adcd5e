//! Prompts, without those that are prefixes of others.

use std::collections::BTreeSet;

use kvik_cache::Token;

/// Prompts of which none is a prefix of another: beside the longer one it changes nothing for a deletion, since the longer
/// one contains all its blocks.
pub(super) struct LongestPrompts {
    prompts: BTreeSet<Vec<Token>>,
    tokens: usize,
    tokens_max: usize,
}

impl LongestPrompts {
    pub(super) fn new(tokens_max: usize) -> LongestPrompts {
        LongestPrompts { prompts: BTreeSet::new(), tokens: 0, tokens_max }
    }

    /// Adds a prompt, or its first `least` tokens if all of them would be too many.
    pub(super) fn add(&mut self, mut prompt: Vec<Token>, least: usize) {
        if self.tokens + prompt.len() > self.tokens_max {
            prompt.truncate(least);
        }
        // In lexicographic order a prompt that continues this one follows it at once, and its only prefix is just before it.
        let next = self.prompts.range::<Vec<Token>, _>(&prompt..).next();
        if next.is_some_and(|next| next.starts_with(&prompt)) {
            return;
        }
        let before = self.prompts.range::<Vec<Token>, _>(..&prompt).next_back();
        if let Some(continued) = before.filter(|before| prompt.starts_with(before)).cloned() {
            self.tokens -= continued.len();
            self.prompts.remove(&continued);
        }
        self.tokens += prompt.len();
        self.prompts.insert(prompt);
    }

    pub(super) fn into_vec(self) -> Vec<Vec<Token>> {
        self.prompts.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use kvik_cache::{BLOCK_POSITIONS, DeletedPrompts};
    use kvik_memory::deletions::Owner;
    use proptest::prelude::*;

    use super::super::{PromptLog, tests::AT};
    use super::*;

    #[test]
    fn of_a_conversation_that_goes_on_the_last_prompt_is_in_memory() {
        let (log, owner, other) =
            (PromptLog::open(None), Owner::new("a", "conv_1"), Owner::new("a", "conv_2"));
        let prompt: Vec<Token> = (0..4000).collect();
        log.note(AT, &owner, &prompt[..20]).unwrap();
        (2..=200).for_each(|turn| log.note(AT, &other, &prompt[..20 * turn]).unwrap());
        let own = log.of(&owner).unwrap().next().unwrap().unwrap();
        assert_eq!(log.others(&owner, &own).unwrap(), [prompt]);
    }

    #[test]
    fn prompts_that_are_too_many_are_kept_as_far_as_they_must() {
        let shared: Vec<Token> = (0..20).collect();
        let mut longest = LongestPrompts::new(1000);
        (100..200).for_each(|own| longest.add([&shared[..], &[own; 80]].concat(), shared.len()));
        assert_eq!(longest.tokens, 1000);
        assert_eq!(longest.into_vec().len(), 10, "the beginning of the others is that of these");
        let mut longest = LongestPrompts::new(10);
        longest.add([&shared[..], &[7; 80]].concat(), shared.len());
        assert_eq!(longest.into_vec(), [shared]);
    }

    /// A prompt that begins as the others do, for at least so many tokens, and ends anyhow.
    fn prompt(common_min: u32) -> impl Strategy<Value = Vec<Token>> {
        let tail = prop::collection::vec(0..2_u32, 0..40);
        (common_min..80, tail).prop_map(|(common, tail)| (0..common).chain(tail).collect::<Vec<Token>>())
    }

    proptest! {
        #[test]
        fn a_deletion_leaves_what_it_leaves_beside_all_prompts(
            own in prop::collection::vec(prompt(BLOCK_POSITIONS as u32), 1..4),
            others in prop::collection::vec(prompt(0), 0..12),
        ) {
            let (log, owner) = (PromptLog::open(None), Owner::new("a", "conv_1"));
            own.iter().for_each(|prompt| log.note(AT, &owner, prompt).unwrap());
            for (number, prompt) in others.iter().enumerate() {
                log.note(AT, &Owner::new("a", format!("conv_other_{}", number % 3)), prompt).unwrap();
            }
            let noted = log.of(&owner).unwrap().next().unwrap().unwrap();
            let left = DeletedPrompts::new(noted.prompts.clone(), log.others(&owner, &noted).unwrap());
            let expect = DeletedPrompts::new(noted.prompts, others.clone());
            for prompt in own.iter().chain(&others) {
                for blocks in 1..=prompt.len() / BLOCK_POSITIONS {
                    let tokens = &prompt[..blocks * BLOCK_POSITIONS];
                    prop_assert_eq!(left.are_gone(tokens), expect.are_gone(tokens), "{:?}", tokens);
                }
            }
        }
    }
}
