//! The prompts of an owner, in parts that fit in memory.

use std::io;

use kvik_cache::Token;

use super::{Salt, entries::Prompts};

/// Prompts computed for one owner under one salt, by any model: all, or a part of them. One that continues another and
/// is continued by a third is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotedPrompts {
    pub(crate) salt: Salt,
    pub(crate) prompts: Vec<Vec<Token>>,
}

/// The prompts of one owner under one salt, in parts that fit in memory.
pub(super) struct Parts {
    pub(super) salt: Salt,
    pub(super) prompts: Prompts,
    pub(super) tokens_max: usize,
}

impl Iterator for Parts {
    type Item = io::Result<NotedPrompts>;

    fn next(&mut self) -> Option<io::Result<NotedPrompts>> {
        let (mut prompts, mut tokens): (Vec<Vec<Token>>, usize) = (Vec::new(), 0);
        while tokens < self.tokens_max
            && let Some(prompt) = self.prompts.next()
        {
            let prompt = match prompt {
                Ok(prompt) if prompt.is_empty() => continue,
                Ok(prompt) => prompt,
                Err(error) => return Some(Err(error)),
            };
            if is_last_between(&prompts, &prompt) {
                tokens -= prompts.pop().map_or(0, |between| between.len());
            }
            tokens += prompt.len();
            prompts.push(prompt);
        }
        (!prompts.is_empty()).then_some(Ok(NotedPrompts { salt: self.salt, prompts }))
    }
}

/// True if the last of these prompts continues the one before it and `next` continues the last. It then says nothing:
/// the one before it stands for everything that was computed behind both, and `next` has the tokens of both.
fn is_last_between(prompts: &[Vec<Token>], next: &[Token]) -> bool {
    match prompts {
        [.., before, last] => last.starts_with(before) && next.starts_with(last),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use kvik_memory::deletions::Owner;

    use super::super::tests::AT;
    use super::super::{PromptLog, file_name};
    use super::*;

    #[test]
    fn more_prompts_than_fit_in_memory_are_read_to_the_last_one_in_parts() {
        let prompts: Vec<Vec<Token>> = (0..40).map(|turn| (0..30).chain([100 + turn; 5]).collect()).collect();
        let log = PromptLog::open(None);
        let owner = Owner::new("a", "conv_1");
        prompts.iter().for_each(|prompt| log.note(AT, &owner, prompt).unwrap());
        let entries = log.prompts(&(AT, file_name(&owner))).unwrap();
        let parts = Parts { salt: AT, prompts: entries, tokens_max: 100 };
        let parts: Vec<Vec<Vec<Token>>> = parts.map(|part| part.unwrap().prompts).collect();
        assert!(parts.iter().all(|part| part.iter().map(Vec::len).sum::<usize>() <= 100 + 35));
        assert_eq!(parts.concat(), prompts);
    }
}
